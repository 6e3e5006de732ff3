"""How engine and workers meet: messages, transport, clocks, launchers."""
