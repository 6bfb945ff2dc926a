"""What is in a file or a model."""

from torch import nn

from helpers.files import METADATA, Dense
from phnn.conversion import convert
from phnn.io import inspect, save
from phnn.models import create_model


class TestInspecting:
    def test_a_file_of_the_zoo(self, tmp_path):
        model = convert(create_model("resnet20"), n=4)
        path = save(model, tmp_path / "m.safetensors", metadata=METADATA)
        found = inspect(path)
        assert (found.name, found.metadata, found.path) == ("resnet20", METADATA, path)
        assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
        assert found.size == path.stat().st_size
        layers = {layer.name: layer for layer in found.layers}
        assert next(iter(layers)) == "bn1"
        assert layers["layer1.0.conv1"].kind == "PHConv2d n=4"
        assert layers["layer1.0.conv1"].parameters == 16 * 16 * 9 // 4 + 4**3
        assert layers["layer1.0.conv1"].size == 4 * (16 * 16 * 9 // 4 + 4**3)
        assert (layers["bn1"].kind, layers["bn1"].parameters) == ("BatchNorm2d", 32)
        text = str(found)
        assert "layer1.0.conv1         PHConv2d n=4" in text
        assert f"resnet20: {found.parameters:,} parameters, {found.size:,} bytes in" in text

    def test_any_other_file(self, tmp_path):
        model = convert(Dense(), n=4)
        found = inspect(save(model, tmp_path))
        assert found.name is None
        assert found.parameters == sum(parameter.numel() for parameter in model.parameters())
        layers = {layer.name: layer for layer in found.layers}
        assert layers["second"].kind == layers["tied"].kind == "PHLinear n=4"
        assert layers["tied"].parameters == 16  # its bias; the weight is that of `second`
        assert "did not make" in str(found)

    def test_natural_order(self, tmp_path):
        model = nn.Sequential(*(nn.Linear(1, 1) for _ in range(11)))
        found = inspect(save(model, tmp_path / "m.safetensors"))
        assert [layer.name for layer in found.layers] == [str(i) for i in range(11)]

    def test_a_model_in_memory(self, tmp_path):
        for model in (convert(create_model("resnet20"), n=4), convert(Dense(), n=4)):
            found, stored = inspect(model), inspect(save(model, tmp_path))
            assert found.parameters == stored.parameters
            assert found.name == stored.name
            assert found.path is None
            kinds = {layer.name: layer.kind for layer in found.layers}
            assert all(kinds[layer.name] == layer.kind for layer in stored.layers if layer.kind)
            assert str(found).endswith(f"{found.size:,} bytes in memory")

    def test_names_cannot_move_the_cursor(self):
        model = nn.Sequential()
        model.add_module("\x1b[2J", nn.Linear(2, 2))
        assert "\x1b" not in str(inspect(model))
        assert "\\x1b[2J" in str(inspect(model))
