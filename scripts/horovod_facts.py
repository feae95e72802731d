"""What install_horovod.sh asks of an environment, in one line: Python's ABI, the version of PyTorch and whether it is a
CUDA build, the version of TensorFlow, and a mark of the Horovod that is installed; none for what is not there."""

from __future__ import annotations

import hashlib
import re
import sys
from importlib.metadata import PackageNotFoundError, distribution

from scalebench.config.horovod_build import framework_version, torch_version_file


def installed() -> str:
    """The list of installed files holds their checksums, and so differs between two builds of one version."""
    try:
        record = distribution("horovod").read_text("RECORD") or ""
    except PackageNotFoundError:
        return "none"
    return hashlib.sha256(record.encode()).hexdigest()[:16]


cuda = re.search(r"^cuda\b.*=\s*['\"]", torch_version_file(), re.MULTILINE)
versions = {name: framework_version(name) or "none" for name in ("torch", "tensorflow")}
print(sys.implementation.cache_tag, versions["torch"], "cuda" if cuda else "cpu", versions["tensorflow"], installed())
