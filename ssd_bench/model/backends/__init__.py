"""Backends that run passes: every module and package here has a `Decoder` subclass called `BACKEND`."""
