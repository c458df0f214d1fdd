"""Libraries that run originals, one file each. All have the function ``run``; see ``originals/__init__.py``."""
