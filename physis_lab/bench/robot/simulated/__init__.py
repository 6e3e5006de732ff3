"""Buffer, safety and controller in simulation, with the real decisions."""
