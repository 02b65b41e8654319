"""OpenVINO's intermediate representation: XML whose first element is ``net``."""

from __future__ import annotations

import re

from loadmaster.readers.registry import Later, reader

_NET = re.compile(rb"(?:<\?xml[^>]*\?>\s*)?(?:<!--.*?-->\s*)*<net[\s>]", re.DOTALL)

reader(
    "openvino",
    "a model of OpenVINO (.xml)",
    recognises=lambda file: _NET.match(file.text) is not None,
)(Later("openvino.ir:read"))
