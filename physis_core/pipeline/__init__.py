"""Pure pipeline decisions: state and `now` in, what to do out. No torch, no threads, no clock."""
