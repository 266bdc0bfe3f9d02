"""The keys of a row of gpus and of nodes, and what each holds; `reading.read_row` enforces it.

A unit of `reading.UNITS` is a table `{ value, unit, source }`; any other word names a reader; "!" is required.
"""

from __future__ import annotations

from capplan.hardware.reading import DTYPES, Schema

SOURCE: Schema = {"id!": "text", "title": "text", "url": "text", "checked!": "checked"}
LINK: Schema = {
    "kind": "text",
    "generation": "count",
    "topology": "text",
    "domain_size": "count",
    "unidirectional": "byte/s",
    "bidirectional": "byte/s",
    "p2p": "byte/s",
    "p2p_measured": "byte/s",
}
PCIE: Schema = {
    "generation": "count",
    "lanes": "count",
    "per_direction": "byte/s",
    "host_to_device": "byte/s",
    "device_to_host": "byte/s",
}
GPU: Schema = {
    "id!": "text",
    "aliases": "names",
    "name!": "text",
    "vendor!": "text",
    "architecture": "text",
    "form_factor": "text",
    "released": "text",
    "status": "status",
    "compute_capability": "text",
    "native_dtypes": "dtypes",
    "notes": "texts",
    "memory": {
        "kind": "text",
        "label!": "byte",
        "reported": "byte",
        "process_visible": "byte",
        "bandwidth": "byte/s",
        "l2": "byte",
        "last_level_cache": "byte",
    },
    "dense_flops": dict.fromkeys(DTYPES, "FLOP/s"),
    "matmul_efficiency": dict.fromkeys(DTYPES, "fraction"),
    "interconnect": LINK,
    "pcie": PCIE,
    "host_link": {
        "kind": "text",
        "unidirectional": "byte/s",
        "bidirectional": "byte/s",
        "host_to_device": "byte/s",
        "device_to_host": "byte/s",
    },
    "nic": {"per_gpu": "byte/s"},
    "board": {
        "sm_count": "count",
        "sm_unit": "text",
        "boost_clock": "Hz",
        "tdp": "W",
        "devices_per_board": "count",
        "max_gpus_per_node": "count",
        "all_in_power": "W",
        "purchase_price": "USD",
    },
    "prices": [
        {
            "usd_per_gpu_hour!": "number",
            "basis!": "price basis",
            "what": "text",
            "date": "date",
            "source!": "text",
        }
    ],
    "instances": [
        {
            "cloud!": "text",
            "name!": "text",
            "gpus!": "count",
            "usd_per_hour": "number",
            "region": "text",
            "price_date": "date",
            "source": "text",
            "vcpus": "count",
            "memory_gib": "number",
            "nvme_gb": "number",
            "network_gbit_s": "number",
            "spec_source": "text",
            "note": "text",
        }
    ],
    "sources": [SOURCE],
}
NODE: Schema = {
    "id!": "text",
    "aliases": "names",
    "name!": "text",
    "gpu!": "text",
    "gpus!": "count",
    "notes": "texts",
    "interconnect": LINK,
    "pcie": PCIE,
    "nic": {"layout": "text", "per_gpu": "byte/s", "write_measured": "byte/s", "read_measured": "byte/s"},
    "storage": {"local_ssd": "byte"},
    "power": {"maximum": "W"},
    "sources": [SOURCE],
}
