"""Which environment variables a record keeps, and that it keeps no passwords."""

import time

from scalebench.core.machine import variables


def test_secrets_are_not_recorded():
    secrets = (
        "OMP_api_key NCCL_SOCKET_USER_PASS TORCH_HUB_PAT CUDA_APIKEY HOROVOD_PW XLA_AUTH OMPI_MCA_pw TF_VAR_login "
        "HOROVOD_SECRET_KEY PYTORCH_hf_token MKL_PASSPHRASE UCX_AUTHORIZATION FI_CREDENTIALS"
    ).split()
    assert [name for name in secrets if not variables.SECRET_VARIABLES.search(name)] == []
    assert variables.select_recorded(dict.fromkeys(secrets, "hidden")) == {}
    others = ("TOKENIZERS_PARALLELISM", "NCCL_CHECK_BYPASS", "NCCL_P2P_DISABLE", *variables.RECORDED_VARIABLES)
    assert not [name for name in others if variables.SECRET_VARIABLES.search(name)]
    # A listed name that no pattern has would not reach ranks on other hosts.
    assert not [
        n
        for n in variables.RECORDED_VARIABLES
        if not (variables.FRAMEWORK_VARIABLES.match(n) or variables.SYSTEM_VARIABLES.match(n))
    ]


def test_values_are_recorded_by_name_and_never_by_prefix_alone():
    shell = {"NCCL_DEBUG": "INFO", "TF_HTTP_PROXY": "http://me:pw@proxy", "NCCL_LICENCE": "abc", "HOME": "/root"}
    assert variables.select_recorded(shell) == {
        "NCCL_DEBUG": "INFO", "NCCL_LICENCE": variables.HIDDEN_VALUE, "TF_HTTP_PROXY": variables.HIDDEN_VALUE
    }  # fmt: skip
    assert variables.select_recorded({"NCCL_CONF_FILE": "http://me:pw@host/x"}) == {
        "NCCL_CONF_FILE": "http://***@host/x"
    }


def test_addresses_lose_user_and_password():
    masked = {
        "postgres://u:p@h/db": "postgres://***@h/db",
        "https://token@github.com/a/b.git and ssh://git@h": "https://***@github.com/a/b.git and ssh://***@h",
        "http://u:p@ss@h": "http://***@h",
        r'{"a": "http://u:\"\\@h"}': r'{"a": "http://***@h"}',
    }
    same = ("https://host/path?mail=a@b me@example.com", "https://host:8080")
    masked |= {text: text for text in (*same, "://" * 300_000, "a" * 1_000_000 + "://" + "b" * 1_000_000)}
    started_s = time.process_time()
    assert [text for text in masked if variables.mask_credentials(text) != masked[text]] == []
    assert time.process_time() - started_s < 5.0, "long texts are masked in little time"
