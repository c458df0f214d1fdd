"""Bugs in the loss, its gradients, and Adam; and values of one row that reach another."""

from triglot.parity.audit.bug import POST_NORM, TRANSLATION, Bug, everywhere

FILE = "training.py"
GRADIENTS, TRAINING = ("gradients",), ("training",)
STOPPED = {"x + residual": "x + residual.detach()"}
DERIVED = "self.backend.gradients(*self._training_tensors(batch, dropout_masks))"
SUMMED = {
    DERIVED: f"{DERIVED}; before = self.__dict__.get('before', {{}}); "
    "gradients = {name: value + before.get(name, 0) for name, value in gradients.items()}; "
    "self.__dict__['before'] = gradients"
}
NO_GRADIENT = {"if parameter.grad is None:": "if False:"}

BUGS = {
    "mean over labels that do not count": everywhere(
        "loss", FILE, {"counted.sum()": "(counted | ~counted).sum()"}, TRANSLATION, GRADIENTS
    ),
    "label 0 not counted": everywhere("loss", FILE, {"labels >= 0": "labels > 0"}, TRANSLATION, GRADIENTS),
    "mean over padding": everywhere("loss", FILE, {"valid.sum()": "(valid | ~valid).sum()"}, POST_NORM, GRADIENTS),
    "no gradient through the residual": Bug(
        "gradients.",
        "process.py",
        STOPPED,
        STOPPED,
        {"x + residual": "x + __import__('jax').lax.stop_gradient(residual)"},
        checks=GRADIENTS,
    ),
    "gradients added to those of the call before": everywhere("gradients.", "model.py", SUMMED, POST_NORM, GRADIENTS),
    "nothing dropped": everywhere(
        "loss", FILE, {"Probe(dropout_masks=dropout_masks)": "Probe(dropout_masks={})"}, POST_NORM, TRAINING
    ),
    "betas exchanged": Bug(
        "fresh.first_moments.",
        FILE,
        {"betas=BETAS": "betas=BETAS[::-1]"},
        {"*BETAS, EPSILON": "*BETAS[::-1], EPSILON"},
        {"*BETAS, EPSILON": "*BETAS[::-1], EPSILON"},
        checks=TRAINING,
    ),
    "epsilon of 1e-6 for 1e-8 in Adam": Bug(
        "fresh.weights.",
        FILE,
        {"eps=EPSILON": "eps=1e-6"},
        {"*BETAS, EPSILON": "*BETAS, 1e-6"},
        {"*BETAS, EPSILON": "*BETAS, 1e-6"},
        checks=TRAINING,
    ),
    "AdamW for Adam": Bug(
        "fresh.weights.",
        FILE,
        {"torch.optim.Adam(": "torch.optim.AdamW("},
        {"paddle.optimizer.Adam(": "paddle.optimizer.AdamW("},
        {"optax.adam(": "optax.adamw("},
        checks=TRAINING,
    ),
    "rate not resumed": Bug(
        "resumed.weights.",
        FILE,
        {"plan.rate_at(moments.steps)": "plan.rate"},
        {"plan.rate_at(moments.steps)": "plan.rate"},
        {"self.plan.rate_at(self.steps)": "self.plan.rate"},
        checks=TRAINING,
    ),
    "rate that never falls": Bug(
        "continued.weights.",
        FILE,
        {"self.schedule.step()": "pass"},
        {"self.schedule.step()": "pass"},
        {"self.steps += 1": "pass"},
        checks=TRAINING,
    ),
    "bias correction from the first step when resumed": Bug(
        "resumed.weights.",
        FILE,
        {"float(moments.steps), device": "0.0, device"},
        {"np.full(moments.steps + 1, beta": "np.full(1, beta"},
        {"jnp.asarray(moments.steps, jnp.int32)": "jnp.asarray(0, jnp.int32)"},
        checks=TRAINING,
    ),
    "moments of a head without a loss kept as they are": Bug(
        "resumed.",
        FILE,
        NO_GRADIENT,
        NO_GRADIENT,
        {
            "moments.append(weights.to_canonical(config, tensors))": (
                "tensors = {n: t / 0.9 if n.startswith('heads') else t for n, t in tensors.items()}; "
                "moments.append(weights.to_canonical(config, tensors))"
            )
        },
        checks=TRAINING,
    ),
    "zero times the first row added to all": everywhere(
        "overflowing_row.",
        "encoder.py",
        {"x = layer(x, allowed": "x = layer(x + 0 * x[:1], allowed"},
        POST_NORM,
        ("invariants",),
    ),
}
