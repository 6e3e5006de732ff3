"""How good generated pictures are, and what a policy does inside a world model."""
