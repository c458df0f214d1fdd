"""Where the frameworks run: each in a process of its own, or all in this one."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from triglot.shared import checkpoint as checkpoints
from triglot.shared.checkpoint import Checkpoint, npz
from triglot.shared.environment import environment
from triglot.shared.errors import CheckpointError
from triglot.shared.worker import Worker, WorkerError

from .jobs import Build, Job, Results, Runner
from .revealing import Weights

WORKER = ("-P", "-m", "triglot.parity.worker")  # the arguments of the interpreter that runs a framework


class Pool(Protocol):
    """The frameworks under test. ``environments`` describes where each framework with a process of its own runs."""

    environments: dict[str, Any]

    def start(self, job: Job) -> None:
        """Begin a job in every framework that is still alive, after the jobs that have begun before it."""
        ...

    def finish(self) -> Iterator[tuple[str, Results | WorkerError]]:
        """Yield each framework and its results of the oldest job that has begun.

        The results of the previous job may have been deleted by then. A framework whose error is fatal leaves the pool.
        """
        ...

    def is_empty(self) -> bool:
        """Return whether every framework has left the pool."""
        ...

    def close(self) -> None:
        """Free what the pool holds."""
        ...


class LocalPool:
    """All frameworks in this process: quick for small models, but a crash ends the whole run."""

    def __init__(
        self, builds: Mapping[str, Build], weights: Mapping[Weights, Checkpoint], *, dtype: str, mode: str
    ) -> None:
        self._runners = {framework: Runner(build, dtype, mode) for framework, build in builds.items()}
        self._weights = weights
        self._started: deque[Job] = deque()
        self.environments: dict[str, Any] = {}

    def start(self, job: Job) -> None:
        """See ``Pool.start``."""
        self._started.append(job)

    def finish(self) -> Iterator[tuple[str, Results | WorkerError]]:
        """See ``Pool.finish``."""
        job = self._started.popleft()
        weights = self._weights[job.weights]
        for framework, runner in list(self._runners.items()):
            try:
                runner.model(weights)
            except Exception as error:
                del self._runners[framework]
                yield framework, WorkerError.of(error, fatal=True)
                continue
            try:
                yield framework, runner.run(job.kind, weights, job.batch, job.arrays)
            except Exception as error:
                yield framework, WorkerError.of(error, fatal=False)

    def is_empty(self) -> bool:
        """See ``Pool.is_empty``."""
        return not self._runners

    def close(self) -> None:
        """See ``Pool.close``."""
        self._runners.clear()


class WorkerPool:
    """One process per framework, all at work at the same time. Arrays travel in files in ``folder``.

    ``commands`` maps each framework to the command that starts its worker. ``settings``: device, dtype and mode.
    """

    def __init__(
        self,
        commands: Mapping[str, Sequence[str]],
        weights: Mapping[Weights, Checkpoint],
        folder: Path,
        *,
        settings: Mapping[str, str],
        threads: int,
        time_limit: float,
    ) -> None:
        self._folder = folder
        self._started = self._finished = 0  # jobs
        self.environments: dict[str, Any] = {}
        self._weights: dict[Weights, Path] = {}
        self._workers: dict[str, Worker] = {}
        try:
            for framework, command in commands.items():
                worker = Worker(command, folder / f"{framework}.log", threads, time_limit)
                self._workers[framework] = worker
                worker.send("start", {"framework": framework, **settings})
            self._write(weights)  # while the workers start
        except BaseException:
            self.close()
            raise

    def start(self, job: Job) -> None:
        """See ``Pool.start``."""
        self._started += 1
        paths = {
            "checkpoint": self._weights[job.weights],
            "batch": self._file("batch", self._started),
            "arrays": self._file("arrays", self._started),
        }
        npz.write(paths["batch"], job.batch.arrays())
        npz.write(paths["arrays"], job.arrays)
        for framework, worker in self._workers.items():
            request = {**paths, "results": self._file(framework, self._started)}
            worker.send("job", {"job": job.kind, **{name: str(path) for name, path in request.items()}})

    def finish(self) -> Iterator[tuple[str, Results | WorkerError]]:
        """See ``Pool.finish``."""
        self._finished += 1
        for name in (*self._workers, "batch", "arrays"):
            self._file(name, self._finished - 1).unlink(missing_ok=True)
        for framework, worker in list(self._workers.items()):
            try:
                if framework not in self.environments:
                    self.environments[framework] = _receive_environment(worker)
                worker.receive()
            except WorkerError as error:
                if error.fatal:
                    del self._workers[framework]
                yield framework, error
            else:
                yield framework, self._read(framework)

    def is_empty(self) -> bool:
        """See ``Pool.is_empty``."""
        return not self._workers

    def close(self) -> None:
        """See ``Pool.close``."""
        for worker in self._workers.values():
            worker.close()

    def _write(self, weights: Mapping[Weights, Checkpoint]) -> None:
        written: dict[int, Path] = {}
        for name, checkpoint in weights.items():
            if id(checkpoint) not in written:
                written[id(checkpoint)] = self._folder / f"{name}.npz"
                checkpoints.save(checkpoint, written[id(checkpoint)])
            self._weights[name] = written[id(checkpoint)]

    def _read(self, framework: str) -> Results | WorkerError:
        try:
            return npz.read(self._file(framework, self._finished))
        except CheckpointError as error:
            return WorkerError.of(error, fatal=False)

    def _file(self, name: str, job: int) -> Path:
        return self._folder / f"{name}_{job}.npz"


def _receive_environment(worker: Worker) -> Any:
    """Return the environment of a worker, its first answer. Its version of Triglot has to be ours."""
    answer = worker.receive()
    try:
        its_version = answer["environment"]["packages"]["triglot"]
    except (KeyError, TypeError):
        worker.close()
        raise WorkerError(
            "not a Triglot worker: its first answer does not describe its environment", fatal=True
        ) from None
    version = environment()["packages"]["triglot"]
    if its_version != version:
        worker.close()
        raise WorkerError(
            f"its interpreter has Triglot {its_version}, this one {version}; install the same version", fatal=True
        )
    return answer["environment"]
