"""Threads in Paddle: its import sets ``OMP_NUM_THREADS``, and its programs run several operations at once."""

import os
import subprocess
import sys

import paddle
import pytest

from triglot.impls.paddlepaddle.backend import Backend


@pytest.mark.long(chosen="1")
@pytest.mark.parametrize("first", ["triglot.impls.paddlepaddle", "triglot, paddle, triglot.impls.paddlepaddle"])
@pytest.mark.parametrize("chosen", [None, "1"])
def test_paddle_leaves_the_threads_of_others_alone(chosen, first):
    """Its import sets OMP_NUM_THREADS to 1, if it is unset."""
    code = f"import os, {first}; print(os.environ.get('OMP_NUM_THREADS'))"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    environment |= {"OMP_NUM_THREADS": chosen} if chosen else {}
    run = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == str(chosen)


@pytest.mark.long
def test_a_number_of_threads_that_was_set_before_paddle_is_kept():
    code = "import os, triglot; os.environ['OMP_NUM_THREADS'] = '4'; import paddle, triglot.impls.paddlepaddle"
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-c", f"{code}; print(os.environ.get('OMP_NUM_THREADS'))"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "4"


@pytest.mark.parametrize("chosen", [False, True])
@pytest.mark.parametrize(
    ("mode", "workload", "is_serial"),
    [("jit", "forward", True), ("jit", "training", True), ("compiled", "trace", True), ("compiled", "forward", False)],
)
def test_paddle_runs_one_operation_of_a_program_at_a_time(mode, workload, is_serial, chosen, make_checkpoint):
    """By default, independent operations of a program run at the same time, each with all threads.

    The inference engine of mode "compiled" does not read the flag.
    """
    flag = "FLAGS_new_executor_serial_run"
    paddle.set_flags({flag: chosen})
    try:
        with Backend(make_checkpoint("bert-base-tiny"), "cpu", "float32", mode).computing(workload):
            during = paddle.get_flags(flag)[flag]
        assert (during, paddle.get_flags(flag)[flag]) == (is_serial or chosen, chosen)
    finally:
        paddle.set_flags({flag: False})
