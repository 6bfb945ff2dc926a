import pytest
import torch

from phnn.lab.tasks.images import make_digits


@pytest.fixture(scope="module")
def digits():
    return make_digits(seed=3, train=600, test=200)


def test_the_shapes_and_types(digits):
    assert digits.train.images.shape == (600, 3, 32, 32)
    assert digits.test.images.shape == (200, 3, 32, 32)
    assert digits.train.images.dtype == torch.uint8
    assert digits.train.classes == tuple("0123456789")
    assert digits.train.labels.unique().tolist() == list(range(10))


def test_the_same_seed_gives_the_same_images(digits):
    again = make_digits(seed=3, train=600, test=200)
    assert torch.equal(again.train.images, digits.train.images)
    assert torch.equal(again.test.labels, digits.test.labels)


def test_another_seed_gives_other_images(digits):
    other = make_digits(seed=4, train=600, test=200)
    assert not torch.equal(other.train.images, digits.train.images)


def test_train_validation_and_test_share_no_handwritten_digit(digits):
    train, validation = digits.train.split(0.1, seed=0)
    splits = [set(split.groups.tolist()) for split in (train, validation, digits.test)]
    assert not splits[0] & splits[1]
    assert not splits[0] & splits[2]
    assert not splits[1] & splits[2]
    assert len(train) + len(validation) == 600


def test_every_image_has_contrast(digits):
    weights = torch.tensor([0.299, 0.587, 0.114])
    brightness = torch.einsum("c,nchw->nhw", weights, digits.train.images.float()).flatten(1)
    spread = brightness.quantile(0.95, dim=1) - brightness.quantile(0.05, dim=1)
    assert spread.min() > 40  # of 255


@pytest.mark.slow
def test_a_linear_model_fails():
    digits = make_digits()
    inputs = [split.images.flatten(1).float() / 127.5 - 1 for split in (digits.train, digits.test)]
    targets = torch.nn.functional.one_hot(digits.train.labels).float()
    # ridge regression: the best linear classifier to have in closed form
    gram = inputs[0].T @ inputs[0] + 1e3 * torch.eye(inputs[0].shape[1])
    weight = torch.linalg.solve(gram, inputs[0].T @ targets)
    accuracy = ((inputs[1] @ weight).argmax(1) == digits.test.labels).float().mean()
    assert accuracy < 0.5
