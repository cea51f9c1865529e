"""Backends that run passes: every module and package here has a subclass of `Decoder` called `BACKEND`."""
