"""`physis serve`: the engine on a GPU host, for robots on other hosts of the same ROS domain.

It runs the stack `engine`: what a deployment file says, or one model with the most used parameters
as options. Its workers run on this host, or torchrun starts them on several hosts. With `--openpi`
it serves no ROS but openpi's wire.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from physis_core.cluster.orders import shared_key
from physis_core.deployment.file import load_deployment
from physis_core.types import UserError
from physis_ros.cli import up

SUMMARY = "run the engine alone, for robots on other hosts, over ROS or over openpi's websocket"

_OPTIONS = (
    "partition",
    "devices",
    "workers",
    "device_kind",
    "link",
    "max_batch",
    "profile",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "deployment",
        nargs="?",
        type=Path,
        metavar="FILE",
        help="a deployment (`physis plan --out`): its models, devices, routes and streams",
    )
    for name in _OPTIONS:
        parser.add_argument(
            f"--{name.replace('_', '-')}", help=f"engine_node's parameter {name}", metavar="VALUE"
        )
    parser.add_argument(
        "--streams",
        metavar="ID,...",
        help="one stream per robot, its topics in the namespace of that name; more may open later",
    )
    parser.add_argument(
        "--front",
        metavar="HOST:PORT",
        help="wait at this address for workers that torchrun starts, the key in PHYSIS_KEY",
    )
    parser.add_argument(
        "--openpi",
        metavar="[HOST:]PORT",
        help="serve openpi's wire there in place of ROS; HOST is this machine alone by default",
    )
    parser.add_argument(
        "--api-key-file", metavar="FILE", help="with --openpi: clients must send the key in FILE"
    )
    up.add_stack_arguments(parser)


def run(args: argparse.Namespace) -> dict[str, Any]:
    args.stack = "engine"
    if args.openpi is not None and args.front is not None:
        raise UserError("front", args.front, "is not used with --openpi")
    args.set = [*_sets(args), *args.set]
    if args.openpi is not None:
        from physis_ros.cli.serve_openpi import serve_openpi

        return serve_openpi(args)
    if args.api_key_file is not None:
        raise UserError("api_key_file", args.api_key_file, "is used with --openpi")
    if args.front is not None:
        workers = args.workers if args.workers is not None else "2"
        print(
            "on each host, with the same PHYSIS_KEY:  torchrun --nnodes N --nproc-per-node M"
            f" ... -m physis_core.worker.process --front {args.front}   (N x M = {workers})",
            flush=True,
        )
    return up.run(args)


def _sets(args: argparse.Namespace) -> list[str]:
    """The options as `node.parameter=value`, weaker than an explicit --set."""
    if args.deployment is not None:
        for name in (*_OPTIONS, "streams", "front"):
            if getattr(args, name) is not None:
                raise UserError(name, getattr(args, name), "stands in the deployment file")
        # Here, too: a wrong field is said before any process starts.
        load_deployment(args.deployment)
        return [f"engine_node.deployment={args.deployment.resolve()}"]
    sets = [
        f"engine_node.{name}={getattr(args, name)}"
        for name in _OPTIONS
        if getattr(args, name) is not None
    ]
    if args.streams is not None:
        ids = [part.strip() for part in args.streams.split(",")]
        if not all(ids):
            raise UserError("streams", args.streams, "must be names separated by commas")
        listed = ", ".join(ids)
        sets += [
            f"engine_node.stream_ids=[{listed}]",
            f"engine_node.stream_namespaces=[{listed}]",
        ]
    if args.front is not None:
        host, _, port = args.front.rpartition(":")
        if not host or not port.isdigit() or not 0 < int(port) < 65536:
            raise UserError("front", args.front, "must be HOST:PORT")
        shared_key(os.environ)
        sets += [
            "engine_node.workers_from=elsewhere",
            f"engine_node.front_host={host}",
            f"engine_node.front_port={port}",
        ]
    return sets
