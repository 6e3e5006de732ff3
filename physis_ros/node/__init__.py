"""What every node shares: base node, process, parameters, interfaces, message conversions."""
