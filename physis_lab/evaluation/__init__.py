"""How well a policy does: the fast closed loop, and the real stack."""
