"""Which environment variables a record keeps, and that it keeps no passwords."""

import time

import pytest

from scalebench.core.machine.variables import (
    FRAMEWORK_VARIABLES,
    HIDDEN_VALUE,
    RECORDED_VARIABLES,
    SECRET_VARIABLES,
    SYSTEM_VARIABLES,
    mask_credentials,
    select_recorded,
)

SECRETS = (
    "OMP_api_key NCCL_SOCKET_USER_PASS TORCH_HUB_PAT CUDA_APIKEY HOROVOD_PW XLA_AUTH OMPI_MCA_pw TF_VAR_login "
    "HOROVOD_SECRET_KEY PYTORCH_hf_token MKL_PASSPHRASE UCX_AUTHORIZATION FI_CREDENTIALS"
).split()
NO_SECRETS = ("TOKENIZERS_PARALLELISM", "NCCL_CHECK_BYPASS", "NCCL_P2P_DISABLE")


@pytest.mark.parametrize("name", SECRETS)
def test_secrets_are_not_recorded(name):
    assert SECRET_VARIABLES.search(name)
    assert select_recorded({name: "hidden"}) == {}


@pytest.mark.parametrize("name", NO_SECRETS)
def test_other_names_are_none(name):
    assert not SECRET_VARIABLES.search(name)


def test_values_are_recorded_by_name_and_never_by_prefix_alone():
    shell = {"NCCL_DEBUG": "INFO", "TF_HTTP_PROXY": "http://me:pw@proxy", "NCCL_LICENCE": "abc", "HOME": "/root"}
    assert select_recorded(shell) == {
        "NCCL_DEBUG": "INFO", "NCCL_LICENCE": HIDDEN_VALUE, "TF_HTTP_PROXY": HIDDEN_VALUE
    }  # fmt: skip
    assert select_recorded({"NCCL_CONF_FILE": "http://me:pw@host/x"}) == {"NCCL_CONF_FILE": "http://***@host/x"}


def test_the_list_fits_the_patterns():
    """A listed name that no pattern has would not reach ranks on other hosts; secret ones are refused."""
    assert not [name for name in RECORDED_VARIABLES if SECRET_VARIABLES.search(name)]
    assert not [n for n in RECORDED_VARIABLES if not (FRAMEWORK_VARIABLES.match(n) or SYSTEM_VARIABLES.match(n))]


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("postgres://u:p@h/db", "postgres://***@h/db"),
        ("see https://token@github.com/a/b.git and ssh://git@h", "see https://***@github.com/a/b.git and ssh://***@h"),
        ("http://u:p@ss@h", "http://***@h"),
        (r'{"a": "http://u:\"\\@h"}', r'{"a": "http://***@h"}'),
        ("https://host/path?mail=a@b me@example.com", None),
        ("https://host:8080", None),
    ],
)
def test_addresses_lose_user_and_password(text, masked):
    assert mask_credentials(text) == (text if masked is None else masked)


def test_long_texts_are_masked_in_little_time():
    started_s = time.process_time()
    for text in ("://" * 300_000, "a" * 1_000_000 + "://" + "b" * 1_000_000):
        assert mask_credentials(text) == text
    assert time.process_time() - started_s < 5.0
