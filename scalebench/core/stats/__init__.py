"""Statistics as pure functions on numbers: estimates with confidence limits, and the steady state."""
