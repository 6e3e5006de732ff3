"""What the trajectory controller may be executing, and which motion fits. Pure; imports nothing of
the folder above."""
