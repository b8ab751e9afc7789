"""Checks of arguments: values of any kind are accepted, or refused in one line that names them."""

import pickle

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import fedjax_drag as fd
from fedjax_drag import checks

NO_NAMES = {
    "array <U7[2]": np.array(["full", "partial"]),
    "array <U4[1]": np.array(["full"]),
    "array <U4[]": np.array("full"),
    "array float64[2, 2]": np.ones((2, 2)),
    "array float32[3]": jnp.ones(3),
    "(array float64[2],)": (np.ones(2),),
    "['full']": ["full"],
    "{'full': 1}": {"full": 1},
    "None": None,
    "True": True,
    "nan": float("nan"),
    "b'full'": b"full",
}


@pytest.mark.parametrize("text", NO_NAMES)
def test_one_of_refuses_a_value_of_any_other_kind(text):
    with pytest.raises(ValueError, match="must be one of full, partial") as error:
        checks.one_of("knowledge", NO_NAMES[text], ("full", "partial"))
    assert str(error.value).startswith(f"knowledge={text}: ")
    assert "\n" not in str(error.value)


def test_one_of_accepts_names_flags_and_scalars_of_numpy():
    checks.one_of("knowledge", np.str_("full"), ("full", "partial"))
    checks.one_of("balanced", np.True_, (False, True))
    with pytest.raises(ValueError, match=r"balanced=array bool\[2\]: must be one of False, True"):
        checks.one_of("balanced", np.array([True, False]), (False, True))


@pytest.mark.parametrize(
    ("build", "argument"),
    [
        (fd.algorithms.scaffold, "tailored"),
        (fd.algorithms.stem, "carry_momentum"),
        (fd.aggregators.fltrust, "projection"),
        (fd.compression.sign, "error_feedback"),
    ],
)
def test_a_flag_is_true_or_false(build, argument):
    with pytest.raises(ValueError, match=f"{argument}='no': must be True or False"):
        build(**{argument: "no"})


def test_an_attack_names_an_array_that_it_cannot_take():
    with pytest.raises(ValueError, match=r"knowledge=array <U7\[2\]: must be one of full, partial"):
        fd.attacks.krum_attack(knowledge=np.array(["full", "partial"]))


@pytest.mark.parametrize(
    "value",
    [
        np.str_("0.5"),
        np.array("0.5"),
        np.array(None),
        np.True_,
        np.array(True),
        np.complex64(1j),
        np.datetime64("2020"),
        np.timedelta64(1, "s"),
        np.ones(1),
        jnp.ones(1),
        "0.5",
        [0.5],
        None,
        True,
        1j,
    ],
    ids=repr,
)
def test_in_range_refuses_what_is_no_number(value):
    with pytest.raises(ValueError, match=r"z=.*: must be a number") as error:
        checks.in_range("z", value, 0.0, 1.0)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("kind", [float, int, np.float16, np.float32, np.int8, np.array, jnp.bfloat16.dtype.type])
def test_in_range_checks_numbers_of_every_kind(kind):
    checks.in_range("z", kind(1), 0.0, 1.0)
    with pytest.raises(ValueError, match=r"z=.*: must be in \[0, 1\]"):
        checks.in_range("z", kind(2), 0.0, 1.0)


def test_in_range_accepts_what_is_traced_unchecked():
    jax.jit(lambda value: checks.in_range("z", value, 0.0, 1.0))(2.0)
    checks.in_range("z", jnp.float32(2.0), 0.0, 1.0)


@pytest.mark.parametrize(
    ("error", "message", "argument"),
    [
        (checks.ArgumentError("c", "must be > 0", given=-1.0), "c=-1.0: must be > 0", "c"),
        (checks.ArgumentError("z", "must be given", given=None), "z=None: must be given", "z"),
        (checks.ArgumentError("hidden[1]", "must be >= 1", given=0), "hidden[1]=0: must be >= 1", "hidden"),
        (checks.ArgumentError("aggregator=krum", "is no sum"), "aggregator=krum: is no sum", "aggregator"),
    ],
)
def test_an_error_about_an_argument_carries_its_name_also_to_another_process(error, message, argument):
    for one in (error, pickle.loads(pickle.dumps(error))):
        assert type(one) is checks.ArgumentError
        assert (str(one), one.argument) == (message, argument)
