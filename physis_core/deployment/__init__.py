"""What runs where: devices, hosts, routes; read and checked."""
