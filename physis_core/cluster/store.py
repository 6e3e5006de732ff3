"""The store by which processes of one engine find each other, at the address that was asked for."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING

from physis_core.types import UserError

if TYPE_CHECKING:
    from torch.distributed import TCPStore  # type: ignore[attr-defined]


def listening_store(host: str, port: int, field: str = "port") -> TCPStore:
    """A store that listens at `host` alone; left to itself, TCPStore listens at every address of
    the machine. Port 0: any; `store.port` says which.

    Raises:
        UserError: nobody can listen there; it names `field`.
    """
    # Here, so that the workers have begun to import torch before their engine does.
    from torch.distributed import TCPStore  # type: ignore[attr-defined]

    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        listener = socket.create_server((host, port), family=family, backlog=64)
    except OSError as error:
        raise UserError(field, port, f"cannot listen at {host}: {error.strerror}") from None
    own_port = listener.getsockname()[1]
    return TCPStore(
        host, own_port, None, True, wait_for_workers=False, master_listen_fd=listener.detach()
    )
