"""Where the frameworks run: each in a process of its own, or all in this one."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from triglot.shared import checkpoint
from triglot.shared.arrays import Array
from triglot.shared.checkpoint import Checkpoint, npz
from triglot.shared.environment import environment
from triglot.shared.errors import CheckpointError
from triglot.shared.model.protocol import Model
from triglot.shared.worker import Worker, WorkerError

from .checks import Check, Weights, run

Results = Mapping[str, Array]


class Pool(Protocol):
    """The frameworks that take part; ``environments`` says of each worker process what it runs on."""

    environments: dict[str, Any]

    def start(self, check: Check, replacements: Results) -> None:
        """Begin a check in every framework that is still alive."""
        ...

    def finish(self) -> Iterator[tuple[str, Results | WorkerError]]:
        """What each framework got in the check begun; one whose error is fatal leaves the pool."""
        ...

    def close(self) -> None:
        """Free what the pool holds."""
        ...


class LocalPool:
    """All frameworks in this process: quick for small models, but a crash takes everything along."""

    def __init__(
        self, builders: Mapping[str, Callable[[Checkpoint], Model]], weights: Mapping[Weights, Checkpoint]
    ) -> None:
        self._builders = dict(builders)
        self._weights = weights
        self._models: dict[tuple[str, int], Model] = {}
        self.environments: dict[str, Any] = {}  # no workers: all is in this one

    def start(self, check: Check, replacements: Results) -> None:
        """See ``Pool.start``."""
        self._begun = (check, replacements)

    def finish(self) -> Iterator[tuple[str, Results | WorkerError]]:
        """See ``Pool.finish``."""
        check, replacements = self._begun
        for framework in list(self._builders):
            try:
                model = self._model(framework, check)
            except Exception as error:
                del self._builders[framework]
                yield framework, WorkerError.of(error, fatal=True)
                continue
            try:
                results = run(model, self._weights[check.weights], check.batch, replacements)
            except Exception as error:
                yield framework, WorkerError.of(error, fatal=False)
            else:
                yield framework, results

    def close(self) -> None:
        """See ``Pool.close``."""
        self._models.clear()

    def _model(self, framework: str, check: Check) -> Model:
        weights = self._weights[check.weights]
        key = (framework, id(weights))
        if key not in self._models:
            self._models[key] = self._builders[framework](weights)
        return self._models[key]


class WorkerPool:
    """A process per framework, all at work at once. Arrays travel in files in ``folder``.

    ``commands``: framework -> what starts its worker. ``settings``: what every worker is told beside its framework.
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
        self.environments: dict[str, Any] = {}
        self._weights: dict[Weights, Path] = {}
        written: dict[int, Path] = {}
        for name, tensors in weights.items():
            if id(tensors) not in written:
                written[id(tensors)] = folder / f"{name}.npz"
                checkpoint.save(tensors, written[id(tensors)])
            self._weights[name] = written[id(tensors)]
        self._workers: dict[str, Worker] = {}
        try:
            for framework, command in commands.items():
                worker = Worker(command, folder / f"{framework}.log", threads, time_limit)
                self._workers[framework] = worker
                worker.send({"framework": framework, **settings})
        except BaseException:
            self.close()
            raise

    def start(self, check: Check, replacements: Results) -> None:
        """See ``Pool.start``."""
        paths = {
            "checkpoint": self._weights[check.weights],
            "batch": self._folder / "batch.npz",
            "replacements": self._folder / "replacements.npz",
        }
        npz.write(paths["batch"], check.batch.arrays())
        npz.write(paths["replacements"], replacements)
        for framework, worker in self._workers.items():
            request = {**paths, "results": self._results(framework)}
            worker.send({key: str(path) for key, path in request.items()})

    def finish(self) -> Iterator[tuple[str, Results | WorkerError]]:
        """See ``Pool.finish``."""
        for framework, worker in list(self._workers.items()):
            try:
                if framework not in self.environments:
                    self.environments[framework] = _environment(worker)
                worker.receive()
            except WorkerError as error:
                if error.fatal:
                    del self._workers[framework]
                yield framework, error
            else:
                yield framework, self._read(framework)

    def close(self) -> None:
        """See ``Pool.close``."""
        for worker in self._workers.values():
            worker.close()

    def _read(self, framework: str) -> Results | WorkerError:
        try:
            return npz.read(self._results(framework))
        except CheckpointError as error:
            return WorkerError.of(error, fatal=False)

    def _results(self, framework: str) -> Path:
        return self._folder / f"{framework}.npz"


def _environment(worker: Worker) -> Any:
    """What a worker runs on; it is the first thing that it says."""
    answer = worker.receive()
    try:
        found = answer["environment"]
        theirs = found["packages"]["triglot"]
    except (KeyError, TypeError):
        worker.close()
        raise WorkerError("is no worker of Triglot: it does not say what it runs on", fatal=True) from None
    ours = environment()["packages"]["triglot"]
    if theirs != ours:
        worker.close()
        raise WorkerError(f"its interpreter has Triglot {theirs}, this is {ours}; install the same there", fatal=True)
    return found
