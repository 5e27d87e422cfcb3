"""Devices as JSON values."""

from __future__ import annotations

from dataclasses import asdict

from autotune.device.detection import Detection, DeviceInfo


def detection_json(detection: Detection) -> dict[str, object]:
    """What was found: every device with its fingerprint, and the chosen one's place in the list."""
    return {
        "devices": [_device_json(device) for device in detection.devices],
        "chosen": detection.devices.index(detection.chosen),
        "lost": [asdict(gpu) for gpu in detection.lost],
        "notes": list(detection.notes),
    }


def _device_json(device: DeviceInfo) -> dict[str, object]:
    return asdict(device) | {"fingerprint": device.fingerprint}
