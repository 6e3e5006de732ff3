"""Parameters of policy_node, with ranges and units; their values are in
config/policy_node.param.yaml.
"""

from __future__ import annotations

from dataclasses import dataclass

from physis_ros.node.parameters import REQUIRED, BaseParameters, param


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyParameters(BaseParameters):
    policy: str = param(
        REQUIRED,
        description="The policy server: openpi://HOST:PORT, gr00t://HOST:PORT or "
        "cosmos+http://HOST:PORT/act",
    )
    policy_contract: str = param(
        REQUIRED,
        description="How an observation becomes its request: a name in config/policies, or a file",
    )
    robot_file: str = param(
        "",
        description="The robot's file (a name in config/robots, or a path): a contract for other "
        "joints is refused; empty: not checked",
    )
    joint_prefix: str = param(
        "", description="In front of the joint names of robot_file, where the contract has none"
    )
    stream_id: str = param("arm", description="Stream (robot) that this policy moves")
    api_key_file: str = param(
        "", description="File that holds the server's API key; empty: none is sent"
    )
    connections: int = param(
        1,
        description="Connections to the server, each with requests of its own",
        minimum=1,
        maximum=16,
    )
    in_flight: int = param(
        0,
        description="Most requests in flight on a connection; 0: what the server allows (one where "
        "it says nothing)",
        minimum=0,
        maximum=64,
    )
    period_s: float = param(
        0.0,
        description="Time between requests (the SLO); 0: the contract's",
        unit="s",
        minimum=0.0,
        maximum=3600.0,
    )
    max_age_s: float = param(
        0.5,
        description="An observation older than this since its entry starts no request",
        unit="s",
        minimum=0.001,
        maximum=3600.0,
    )
    open_s: float = param(
        10.0,
        description="Longest time until a server has said what it is",
        unit="s",
        minimum=0.1,
        maximum=3600.0,
    )
    timeout_s: float = param(
        5.0,
        description="A reply that takes longer ends the connection",
        unit="s",
        minimum=0.01,
        maximum=3600.0,
    )
    first_timeout_s: float = param(
        300.0,
        description="The same for the first reply of a connection: a cold server compiles",
        unit="s",
        minimum=0.01,
        maximum=36000.0,
    )
    most_message_mib: int = param(
        64, description="Longest message that is taken", unit="MiB", minimum=1, maximum=4096
    )
    max_action_age_s: float = param(
        2.0,
        description="Largest action age that a deadline allows",
        unit="s",
        minimum=0.001,
        maximum=3600.0,
    )
    expected_response_s: float = param(
        0.2,
        description="Response latency assumed for deadlines before one is measured",
        unit="s",
        minimum=0.0,
        maximum=3600.0,
    )
    margin_s: float = param(
        0.02,
        description="Added to the measured p99 of the response latency for deadlines",
        unit="s",
        minimum=0.0,
        maximum=3600.0,
    )
    lookahead_initial_s: float = param(
        0.15,
        description="Time from capture to reply before it is measured; for servers that take "
        "lookahead_s or inference_delay",
        unit="s",
        minimum=0.0,
        maximum=60.0,
    )
    lookahead_quantile: float = param(
        0.9,
        description="Quantile of the measured ages used for both",
        minimum=0.01,
        maximum=0.99,
    )
    deadline_s: float = param(
        0.5,
        description="DDS deadline offered on action_chunk",
        unit="s",
        minimum=0.001,
        maximum=3600.0,
    )
    lease_s: float = param(
        1.0,
        description="DDS liveliness lease offered on action_chunk",
        unit="s",
        minimum=0.1,
        maximum=3600.0,
    )
