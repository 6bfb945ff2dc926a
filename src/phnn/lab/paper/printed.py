"""The sizes of the networks that the paper prints, table by table."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

UNKNOWN = "no network that matches the text has this number; "
BASIC_BLOCKS = (
    "the number requires basic blocks; the PH rows and other ResNet152 networks have bottlenecks"
)
SMALL_WIDTHS = "half the widths: 75 % fewer parameters, not 75 % fewer filters"


@dataclass(frozen=True)
class Printed:
    """The versions of one network in one table.

    Attributes:
        table: The label of the table in the paper.
        model: The registered name of the network.
        numbers: The printed parameters of each version ("real", the name of an algebra, or "n=…")
            and, after a space, its storage.
        options: Arguments of `create_model` that all versions share.
        remarks: Why a printed number differs from ours, or under which assumption it agrees.
    """

    table: str
    model: str
    numbers: Mapping[str, str]
    options: Mapping[str, Any] = field(default_factory=dict)
    remarks: Mapping[str, str] = field(default_factory=dict)


PRINTED = (
    Printed(
        "tab:img_class",
        "vgg16",
        {"real": "15M", "complex": "7.6M", "quaternion": "3.8M", "n=2": "7.6M", "n=4": "3.8M"},
    ),
    Printed(
        "tab:img_class",
        "vgg19",
        {"real": "29.8M", "complex": "14.8M", "quaternion": "7.5M", "n=2": "14.9M", "n=4": "7.4M"},
        remarks={
            "complex": UNKNOWN + "the weights alone, without batch norm and biases, truncate to it",
        },
    ),
    Printed(
        "tab:img_class_full",
        "resnet18",
        {
            "real": "10.1M 39MB",
            "complex": "5.2M 20MB",
            "quaternion": "2.8M 10MB",
            "n=2": "5.4M 20MB",
            "n=3": "3.6M 13MB",
            "n=4": "2.7M 10MB",
        },
        remarks={
            "real": UNKNOWN + "the PH rows and their reductions agree with our count",
            "complex": UNKNOWN + "it is about half of the unexplained 10.1M",
            "quaternion": "with 100 classes our count rounds to it",
        },
    ),
    Printed(
        "tab:img_class_full",
        "resnet50",
        {
            "real": "22.5M 86MB",
            "complex": "11.1M 43MB",
            "quaternion": "5.7M 22MB",
            "n=2": "11.1M 43MB",
            "n=3": "7.6M 29MB",
            "n=4": "5.7M 23MB",
        },
        remarks={
            "complex": UNKNOWN + "its storage agrees with our count",
            "n=2": UNKNOWN
            + "its storage agrees with our count, so it is probably a misprint of 11.3M",
            "n=4": "the storage is that of 100 classes, rounded",
        },
    ),
    Printed(
        "tab:img_class_full",
        "resnet152",
        {"real": "52.6M 201MB", "complex": "26.3M 101MB", "quaternion": "13.2M 51MB"},
        {"block": "basic"},
        dict.fromkeys(("real", "complex", "quaternion"), BASIC_BLOCKS),
    ),
    Printed(
        "tab:img_class_full",
        "resnet152",
        {"n=2": "26.6M 103MB", "n=3": "17.8M 70MB", "n=4": "13.4M 53MB"},
        remarks=dict.fromkeys(("n=3", "n=4"), "the storage is that of 100 classes"),
    ),
    Printed(
        "tab:img_img",
        "resnet50",
        {"real": "25.7M", "n=3": "9.6M"},
        {"num_classes": 1000},
        {
            "real": UNKNOWN + "ours has the widths of the PH row; torchvision's ResNet50 has 25.6M",
            "n=3": "3×3 stem; the paper names none, and a 7×7 stem agrees as well",
        },
    ),
    Printed(
        "tab:sed_4c",
        "sednet",
        {"real": "1.6M", "quaternion": "0.4M", "n=2": "0.8M", "n=4": "0.4M"},
        {"in_channels": 4},
    ),
    Printed(
        "tab:sed_8c",
        "sednet",
        {"real": "1.6M", "quaternion": "0.4M", "n=2": "0.8M", "n=4": "0.4M", "n=8": "0.2M"},
        {"in_channels": 8},
    ),
    Printed(
        "tab:img_class_app2",
        "resnet20",
        {"real": "0.27M", "quaternion": "0.07M", "n=1": "0.27M", "n=2": "0.14M", "n=4": "0.07M"},
    ),
    Printed(
        "tab:img_class_app2",
        "vgg11",
        {"real": "13.8M", "quaternion": "3.9M", "n=2": "7.2M", "n=3": "5.0M", "n=4": "3.9M"},
        {"classifier": "real"},
    ),
    Printed(
        "tab:img_class_app3",
        "vgg16",
        {"quaternion": "4.2M", "n=2": "7.9M", "n=4": "4.2M"},
        {"classifier": "real"},
    ),
    Printed(
        "tab:img_class_app3",
        "resnet56",
        {"real": "0.9M", "quaternion": "0.2M", "n=2": "0.4M", "n=4": "0.2M"},
    ),
    Printed(
        "tab:img_class_app3",
        "resnet110",
        {"real": "16.7M", "quaternion": "4.2M", "n=2": "8.4M", "n=3": "5.6M", "n=4": "4.2M"},
    ),
    Printed(
        "tab:red_real",
        "resnet18",
        {"real": "10.1M"},
        remarks={"real": UNKNOWN + "see tab:img_class_full"},
    ),
    Printed(
        "tab:red_real",
        "resnet18",
        {"real": "2.7M"},
        {"width_multiplier": 0.5},
        {"real": SMALL_WIDTHS},
    ),
    Printed("tab:red_real", "resnet50", {"real": "22.5M"}),
    Printed(
        "tab:red_real",
        "resnet50",
        {"real": "5.7M"},
        {"width_multiplier": 0.5},
        {"real": SMALL_WIDTHS},
    ),
    Printed(
        "tab:red_real",
        "resnet152",
        {"real": "52.6M"},
        {"block": "basic"},
        {"real": BASIC_BLOCKS},
    ),
    Printed(
        "tab:red_real",
        "resnet152",
        {"real": "13.2M"},
        {"block": "basic", "width_multiplier": 0.5},
        {"real": SMALL_WIDTHS + "; basic blocks"},
    ),
    Printed(
        "tab:sed_app",
        "sednet",
        {"quaternion": "0.4M", "n=4": "0.4M", "n=8": "0.2M", "n=16": "0.1M"},
        {"in_channels": 16},
    ),
)
