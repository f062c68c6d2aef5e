"""Settings that hold for all tests."""

from __future__ import annotations

import signal

from hypothesis import HealthCheck, settings

# A loaded machine must not fail a property, so there is no deadline; pytest-timeout ends what hangs.
settings.register_profile("default", deadline=None)
settings.register_profile("fuzz", deadline=None, max_examples=20_000, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("few", deadline=None, max_examples=20, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("default")

# What a shell starts in the background ignores SIGINT, and so does all that it starts: tests that send it would wait.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
