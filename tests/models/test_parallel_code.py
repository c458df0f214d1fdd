"""The four implementations are parallel: the same files, classes, functions, arguments and docstrings."""

import ast
from pathlib import Path

import pytest

from triglot import impls

ROOT = Path(__file__).parents[2] / "impls"
MODEL_CODE = (
    *(
        "attention.py",
        "decoder.py",
        "embeddings.py",
        "encoder.py",
        "feed_forward.py",
        "heads.py",
        "process.py",
        "sentence_embedding.py",
        "transformer.py",
    ),
)
# Not norms.py, because some frameworks call a kernel; not masks.py, because Paddle needs extra lines for its constants.

# The framework's own: the method that a call runs, Flax's random numbers, and the compiled loss, which JAX compiles
# together with its gradients.
FORWARD = {"forward", "__call__"}
OWN_ARGUMENTS = {"rngs", "compute_loss"}
# Some frameworks need a device to place weights, some only a dtype.
PLACEMENT = {"device", "dtype"}
# One name in several spellings: np2torch, torch2np.
SPELLINGS = {"torch": "native", "paddle": "native", "jax": "native"}
TRAINER = {f"Trainer.{name}" for name in ("__init__", "step", "moments", "_resume")}
# Helpers that only one framework needs, each with the reason.
OWN_HELPERS = {
    # Modules would draw parameters, which the checkpoint replaces.
    ("pytorch", "weights.py"): {"WithoutNoise", "WithoutNoise.__torch_function__"},
    ("numpy_reference", "weights.py"): {
        "place",
        "np2native",
        "native2np",
    },  # no state_dict; nothing to convert
    ("paddlepaddle", "weights.py"): {"without_values", "_converted"},
    ("flax_nnx", "weights.py"): {"by_name", "as_state", "_native_path"},  # the state is a tree, keyed by tuples
    ("numpy_reference", "backend.py"): {"Backend.trainer"},  # it does not train
    # Tracing a module takes time, so it is done once, and without tracing random keys.
    ("flax_nnx", "backend.py"): {"_abstract_transformer", "_SameKey", "_SameKey.forward"},
    # On a CPU, only its inference engine has 16 bits. Its device and its static mode belong to the process.
    ("paddlepaddle", "backend.py"): {"Backend._check_kernels", "_turn"},
    ("paddlepaddle", "masks.py"): {"exact"},  # elsewhere Python numbers keep their digits
    # It cannot train; it computes the derivative of the loss along a direction.
    ("numpy_reference", "training.py"): {"Trainer", *TRAINER, "derivative", "_moved"},
    ("pytorch", "training.py"): {"contiguous"},  # for its fused Adam
    # A compiled function takes everything it reads as arguments.
    ("flax_nnx", "training.py"): {
        "Program",
        "Loss",
        "Loss.__init__",
        "Loss.program",
        "_update",
        "_derive",
        "_optimizer",
    },
    ("numpy_reference", "generation.py"): {"Generator.compile"},  # it is never compiled
    # It compiles only methods of layers, and tracing is slow with stacks. Its inference engine reads a file, names its
    # inputs, and takes float32 even to compute in bfloat16.
    ("paddlepaddle", "execution.py"): {
        "_cast",
        *("_Program", "_Program.__init__", "_Program.forward"),
        *("_Deployed", "_Deployed.__init__", "_Deployed.flat", "_Deployed.run", "_Deployed._build", "_sizes"),
        *("_trace", "_without_stacks"),
    },
    # Its loop is compiled as a whole.
    ("flax_nnx", "generation.py"): {"Generator.compile", "Generator._loop"},
}
# Docstrings that differ because the code does; "" is the file's own.
OWN_WORDS = {("numpy_reference", "training.py"): ("", "gradients")}  # a forward pass for every single weight


# What only serves speed, in the frameworks that need it.
FOR_SPEED = {"packed.py", "packed_loss.py", "fused.py"}


def files(package):
    return sorted(path.name for path in (ROOT / package).glob("*.py") if path.name not in FOR_SPEED)


@pytest.mark.parametrize("package", impls.PACKAGES.values())
def test_same_files(package):
    assert files(package) == files("pytorch")


@pytest.mark.parametrize("file", files("pytorch"))
@pytest.mark.parametrize("package", impls.PACKAGES.values())
def test_same_classes_and_signatures(package, file):
    ours, theirs = (in_common(package, file, signatures(one, file)) for one in (package, "pytorch"))
    assert ours == theirs
    assert list(ours) == list(theirs), "the order of the definitions differs"


@pytest.mark.parametrize(("package", "file"), OWN_HELPERS)
def test_exceptions_are_needed(package, file):
    """A helper that both have must be compared, so it must not be in the list."""
    ours, theirs = (
        signatures(one, file) for one in (package, "numpy_reference" if package == "pytorch" else "pytorch")
    )
    assert {name for name in OWN_HELPERS[package, file] if (name in ours) == (name in theirs)} == set()


@pytest.mark.parametrize("file", MODEL_CODE)
@pytest.mark.parametrize("package", impls.PACKAGES.values())
def test_same_statements_in_the_same_order(package, file):
    assert statements(package, file) == statements("pytorch", file)


@pytest.mark.parametrize("file", [name for name in files("pytorch") if name != "__init__.py"])
@pytest.mark.parametrize("package", impls.PACKAGES.values())
def test_docstrings_are_the_same_words(package, file):
    """Anyone who has read one file has read them all."""
    if file == "weights.py":
        assert ast.get_docstring(ast.parse((ROOT / package / file).read_text()))
        return
    ours, theirs = (in_common(package, file, docstrings(one, file)) for one in (package, "pytorch"))
    for name in OWN_WORDS.get((package, file), ()):
        assert ours.pop(name) != theirs.pop(name)
    assert ours == theirs


@pytest.mark.parametrize("package", impls.PACKAGES.values())
def test_model_files_have_a_legend_of_shapes(package):
    for file in MODEL_CODE:
        assert "\nShapes: " in (ast.get_docstring(ast.parse((ROOT / package / file).read_text())) or ""), file


@pytest.mark.parametrize("package", [impls.PACKAGES[name] for name in impls.FRAMEWORKS])
def test_no_framework_imports_another(package):
    foreign = {"torch", "paddle", "jax", "flax"} - NATIVE[package]
    for file in files(package):
        imported = {name.split(".")[0] for name in imports(ROOT / package / file)}
        assert not imported & foreign, file


NATIVE = {"pytorch": {"torch"}, "paddlepaddle": {"paddle"}, "flax_nnx": {"jax", "flax"}}


def test_missing_counterpart_is_detected(tmp_path, monkeypatch):
    """Test the guard itself with a method, an argument and a statement that only one implementation has."""
    source = (ROOT / "pytorch" / "attention.py").read_text()
    (tmp_path / "pytorch").mkdir()
    (tmp_path / "mutant").mkdir()
    (tmp_path / "pytorch" / "attention.py").write_text(source)
    monkeypatch.setitem(globals(), "ROOT", tmp_path)
    for old, new in (
        ("def merge_heads", "def join_heads"),
        ("allowed: Tensor,", "allowed: Tensor, scale: float,"),
    ):
        assert old in source
        (tmp_path / "mutant" / "attention.py").write_text(source.replace(old, new))
        assert signatures("mutant", "attention.py") != signatures("pytorch", "attention.py")
    old = '        context = observe(probe, "context", self.merge_heads(context))\n'
    assert old in source
    (tmp_path / "mutant" / "attention.py").write_text(source.replace(old, ""))
    assert statements("mutant", "attention.py") != statements("pytorch", "attention.py")


def in_common(package, file, definitions):
    """Return the definitions without the helpers that only this framework, or PyTorch, needs."""
    own = OWN_HELPERS.get((package, file), set()) | OWN_HELPERS.get(("pytorch", file), set())
    return {name: value for name, value in definitions.items() if name not in own}


def signatures(package, file):
    """Return every class and function by qualified name, with its arguments and their defaults."""
    found = {}
    for node in ast.parse((ROOT / package / file).read_text()).body:
        if isinstance(node, ast.ClassDef):
            found[node.name] = "class"
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    name = "forward" if member.name in FORWARD else member.name
                    found[f"{node.name}.{name}"] = arguments(member)
        elif isinstance(node, ast.FunctionDef):
            found[plain(node.name)] = arguments(node)
    return found


def arguments(function):
    every = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    names = [argument.arg for argument in every if argument.arg not in OWN_ARGUMENTS | PLACEMENT]
    defaults = [ast.unparse(default) for default in function.args.defaults + function.args.kw_defaults if default]
    return [plain(name) for name in names], defaults


def statements(package, file):
    """Return the kind of each statement of each function and its targets: the skeleton without the spelling."""
    skeleton = {}
    for node in ast.walk(ast.parse((ROOT / package / file).read_text())):
        if isinstance(node, ast.FunctionDef):
            name = "forward" if node.name in FORWARD else node.name
            skeleton[f"{name} {len(skeleton)}"] = list(outline(node.body))
    return skeleton


def outline(body):
    for node in body:
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant | ast.Call):
            continue  # docstrings, and super().__init__(), which only some classes need
        targets = [ast.unparse(target) for target in node.targets] if isinstance(node, ast.Assign) else []
        yield type(node).__name__, targets, observed(node)
        for part in ("body", "orelse"):
            yield from outline(getattr(node, part, []))


def observed(node):
    """Return the names that a statement passes to the probe."""
    if not isinstance(node, ast.Assign | ast.Return):
        return []
    calls = [call for call in ast.walk(node) if isinstance(call, ast.Call)]
    return [ast.unparse(call.args[1]) for call in calls if ast.unparse(call.func) in ("observe", "under")]


def docstrings(package, file):
    """Return every docstring by qualified name; the file's own has the empty name."""
    found = {}

    def visit(node, path):
        if docstring := ast.get_docstring(node):
            found[".".join(path)] = docstring
        for member in node.body:
            if isinstance(member, ast.ClassDef | ast.FunctionDef):
                visit(member, (*path, "forward" if member.name in FORWARD else plain(member.name)))

    visit(ast.parse((ROOT / package / file).read_text()), ())
    return found


def imports(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and not node.level:
            yield node.module or ""


def plain(name):
    for spelling, common in SPELLINGS.items():
        name = name.replace(f"2{spelling}", f"2{common}").replace(f"{spelling}2", f"{common}2")
    return name
