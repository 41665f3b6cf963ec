"""Whether a cloud is about to take this machine away, as its metadata service says.

Spot machines are announced 30 seconds (Azure, Google) to two minutes (AWS) before they go:

- https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/spot-instance-termination-notices.html
- https://cloud.google.com/compute/docs/instances/create-use-preemptible
- https://learn.microsoft.com/azure/virtual-machines/linux/scheduled-events
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from http.client import HTTPException
from typing import Any

from host.machine import Machine

SERVICE = "http://169.254.169.254"
_DMI = "/sys/class/dmi/id"
_AZURE_TAG = "7783-7084-3265-9085-8269-3286-77"  # Hyper-V elsewhere has the same vendor
_TOKEN = "X-aws-ec2-metadata-token"  # noqa: S105  (a header's name)
_LIVES = 21600  # seconds that a token of AWS's is good for, at most
_PATIENCE = 3.0


def provider(machine: Machine) -> str | None:
    """Whose machine this is: AWS, Google or Azure; None elsewhere."""
    vendor = machine.read(f"{_DMI}/sys_vendor") or ""
    if machine.read(f"{_DMI}/chassis_asset_tag") == _AZURE_TAG:
        return "Azure"
    if vendor == "Google":  # their laptops as well
        return vendor if machine.read(f"{_DMI}/product_name") == "Google Compute Engine" else None
    return "AWS" if vendor == "Amazon EC2" else None


class Notices:
    """What a provider's service says of the end of this machine.

    Args:
        name: as `provider` gives it.
    """

    def __init__(self, name: str, service: str = SERVICE) -> None:
        self.name, self._service = name, service
        self._token = self._own = ""
        # No proxy: the service is on this machine's own link.
        self._open = urllib.request.build_opener(urllib.request.ProxyHandler({})).open

    def look(self) -> str | None:
        """What is announced, for people; None where nothing is.

        Raises:
            OSError: the service does not answer, or not as it should.
        """
        try:
            asked = {"AWS": self._aws, "Google": self._google, "Azure": self._azure}[self.name]
            return asked()
        except (ValueError, LookupError, TypeError, AttributeError, HTTPException) as error:
            raise OSError(f"it says what nobody knows: {error}") from error

    def _aws(self) -> str | None:
        if not self._token:
            lives = {f"{_TOKEN}-ttl-seconds": str(_LIVES)}
            self._token = self._ask("/latest/api/token", lives, method="PUT")
        try:
            text = self._ask("/latest/meta-data/spot/instance-action", {_TOKEN: self._token})
        except urllib.error.HTTPError as error:
            self._token = "" if error.code == 401 else self._token  # it has grown too old
            if error.code in (401, 404):
                return None
            raise
        said = json.loads(text)
        return f"{said['action']} at {said['time']}"

    def _google(self) -> str | None:
        path = "/computeMetadata/v1/instance/preempted"
        text = self._ask(path, {"Metadata-Flavor": "Google"}).strip()
        return "preempted, in 30 s" if text == "TRUE" else None

    def _azure(self) -> str | None:
        header = {"Metadata": "true"}
        if not self._own:
            path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
            self._own = self._ask(path, header).strip()
        path = "/metadata/scheduledevents?api-version=2020-07-01"
        events: list[dict[str, Any]] = json.loads(self._ask(path, header))["Events"]
        for event in events:  # those of other machines of the set stand there too
            if event["EventType"] in ("Preempt", "Terminate") and self._own in event["Resources"]:
                return f"{event['EventType']}, {event.get('NotBefore') or 'now'}"
        return None

    def _ask(self, path: str, headers: dict[str, str], method: str = "GET") -> str:
        asked = urllib.request.Request(self._service + path, headers=headers, method=method)  # noqa: S310
        with self._open(asked, timeout=_PATIENCE) as answer:
            text: str = answer.read(1 << 20).decode()
            return text
