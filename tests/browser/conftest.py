"""A headless Chromium for tests of pages: each with a new empty profile and no network, and nothing left at the end."""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

CHROMIUM_SWITCHES = (
    "--headless=new --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking "
    "--disable-component-update --disable-sync --disable-dev-shm-usage --mute-audio --hide-scrollbars"
).split()
EXIT_TIMEOUT_S = 10  # what Chromium's helpers have to end
Browse = Callable[[Path], Chrome]


def missing_programs():
    lacks = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"needs {' and '.join(lacks)}, which scripts/install_browser.sh installs" if lacks else None


@pytest.fixture
def browser(tmp_path, guards):
    """Closed before the guards look for processes that are left."""
    if (lacks := missing_programs()) is not None:
        pytest.skip(lacks)
    before = set(psutil.Process().children(recursive=True))
    profile = tmp_path / "profile"
    profile.mkdir()
    options = ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for switch in (*CHROMIUM_SWITCHES, f"--user-data-dir={profile}", "--window-size=1280,1000"):
        options.add_argument(switch)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # Caches and settings of the distribution's wrapper go to the home folder, which here is the test's.
    environment = {**os.environ, "HOME": str(profile), "XDG_CONFIG_HOME": str(profile), "XDG_CACHE_HOME": str(profile)}
    service = Service(str(shutil.which("chromedriver")), port=0, env=environment, log_output=subprocess.DEVNULL)
    driver = Chrome(options=options, service=service)
    try:
        yield driver
    finally:
        driver.quit()
        started = [child for child in psutil.Process().children(recursive=True) if child not in before]
        _, left = psutil.wait_procs(started, timeout=EXIT_TIMEOUT_S)
        for process in left:
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=EXIT_TIMEOUT_S)


def set_width(driver, pixels, height=900, dark=False):
    """A window of that many CSS pixels, also below the 500 that a window of Chromium has at least."""
    mobile = {"width": pixels, "height": height, "deviceScaleFactor": 1, "mobile": pixels < 600}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", mobile)
    # Still: what glides away while the test clicks on it is not where the driver found it.
    wishes = {"prefers-color-scheme": "dark" if dark else "light", "prefers-reduced-motion": "reduce"}
    features = [{"name": name, "value": value} for name, value in wishes.items()]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
