"""--shape and --input, what export and bench run a model on."""

import numpy as np
import pytest
import torch

from phnn.cli.example_input import make_example
from phnn.cli.model_argument import find_model

EXPORT = ["--format", "torch", "-o", "a.pt2"]


def test_a_shape(here, call):
    code, out, _ = call("export", "mynetworks:make", "--shape", "2,4,4,4", *EXPORT)
    assert code == 0
    assert out.startswith("wrote a.pt2: ")


def test_an_array(here, call):
    np.save("x.npy", np.ones((2, 4, 4, 4)))  # float64, as NumPy likes it
    assert call("export", "mynetworks:make", "--input", "x.npy", *EXPORT)[0] == 0
    np.save("tokens.npy", np.arange(6).reshape(2, 3))
    assert call("export", "mynetworks:Embeds", "--input", "tokens.npy", *EXPORT)[0] == 0
    program = torch.export.load(here / "a.pt2").module()
    assert program(torch.arange(9).reshape(3, 3)).shape == (3, 3, 4)


def test_several_arrays(here, call, refuse):
    np.savez("xy.npz", x=np.ones((2, 3), np.float32), y=np.ones((2, 3), np.float32))
    assert call("export", "mynetworks:Adds", "--input", "xy.npz", *EXPORT)[0] == 0
    message = refuse("bench", "mynetworks:Adds", "--input", "xy.npz")
    assert "phnn bench times models of one input, xy.npz holds 2" in message


def test_the_shape_that_a_file_knows(dense):
    (example,) = make_example(find_model(str(dense)), None, None, batch=16)
    assert example.shape == (16, 3, 8, 8)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ("", "the input shape of this model is unknown; give --shape, such as"),
        ("--shape 2,4,4,4 --input x.npy", "give --shape or --input, not both"),
        ("--shape 2,x", "argument --shape: '2,x' is not a list of sizes such as 1,3,32,32"),
        ("--shape 2,0", "argument --shape: '2,0' is not a list"),
        ("--shape 2,3,4,4", "does not take an input of shape 2,3,4,4: Given groups=1"),
        ("--shape 100000,100000,1000,1000", "does not fit in memory"),
        ("--input none.npy", "there is no file none.npy"),
        ("--input text.npy", "text.npy does not hold arrays of numbers (.npy or .npz)"),
        ("--input bad.npz", "bad.npz does not hold arrays of numbers"),
        ("--input objects.npy", "objects.npy does not hold arrays of numbers"),
        ("--input words.npy", "words.npy does not hold arrays of numbers"),
    ],
)
def test_mistakes(here, refuse, options, message):
    np.save("x.npy", np.ones((2, 4, 4, 4)))
    np.save("objects.npy", np.array([{}, []], dtype=object))
    np.save("words.npy", np.array(["a", "b"]))
    (here / "text.npy").write_text("hello")
    (here / "bad.npz").write_bytes(b"PK\x03\x04 and then nothing")
    assert message in refuse("export", "mynetworks:make", *options.split(), *EXPORT)
    assert not (here / "a.pt2").exists()
