"""Who runs a pass: every module and package here is a backend, a `Decoder` called `BACKEND`."""
