"""Environment variables: which a record keeps, which ranks on other hosts get, and which are secrets.

Records are shown to others. So a value is kept only where the name is on the list of variables that affect speed; of
others of the same libraries the record says that they were set, since a difference may lie in them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

HIDDEN_VALUE, NOT_PASSED = "set, value not recorded", "set, not passed to ranks"
# These variables set up the libraries that train, communicate and compute.
FRAMEWORK_VARIABLES = re.compile(
    r"(NCCL|HOROVOD|OMP|GLOO|TF|KERAS|MKL|TORCH|TORCHDYNAMO|TORCHINDUCTOR|PYTORCH|XLA|CUDA|CUDNN|CUBLAS|KMP|MALLOC)_|NVIDIA_TF32_OVERRIDE$"
)
# The settings of MPI and UCX, and what a batch system has allocated.
SYSTEM_VARIABLES = re.compile(
    r"(OMPI_MCA|PRTE_MCA|PMIX_MCA|UCX|I_MPI|MPICH|FI)_|LD_PRELOAD$|"
    r"SLURM_(CLUSTER_NAME|CPUS?_|DISTRIBUTION$|GPUS?_|GPUS$|GRES|HINT$|JOB_(ID|NODELIST|NUM_NODES|PARTITION|CPUS|GPUS|QOS)|"
    r"JOBID$|LOCALID$|MEM_|NNODES$|NODELIST$|NPROCS$|NTASKS|PROCID$|STEP_GPUS$|TASKS_PER|THREADS_PER|TRES_PER)"
)
# What a shell has left of other programs: settings by which a framework would train otherwise than the config says, ...
FOREIGN_SETTINGS = re.compile(r"(ACCELERATE|DEEPSPEED|FSDP|MEGATRON_LM|PL)_|TF_CONFIG$")
# ... and the place of this process in the launch that it is from, which is not that of a run.
LAUNCH_VARIABLES = re.compile(
    r"(GROUP_|LOCAL_|NODE_|ROLE_)?(RANK|WORLD_SIZE)$|ROLE_NAME$|(CROSS|LOCAL)_SIZE$|MASTER_(ADDR|PORT)$|"
    r"(TORCHELASTIC|SLURM|SLURMD|PMI|HYDI|MV2_COMM_WORLD|PALS|FLUX)_|(OMPI|PMIX|PRTE)_(?!MCA_)|MPI_LOCAL"
)
PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", "all_proxy")  # some programs take them in capitals, too
NO_PROXY = ("no_proxy", "NO_PROXY", "no_grpc_proxy")
# Neither recorded nor passed on nor accepted in a config, also Terraform's variables, which begin with TF_ too.
SECRET_VARIABLES = re.compile(
    r"^TF_(VAR|TOKEN|CLI)_|TOKEN(?!IZER)|SECRET|(?<!BY)PASS(?=$|_|W|P)|CREDENTIAL|_KEY|API_?KEY|(^|_)AUTH|_(PAT|PW|PWD)$",
    re.IGNORECASE,
)
# User and password of an address; at most what fits into a line, so that no text takes long. Also within JSON.
URL_CREDENTIALS = re.compile(r"""(?<=://)(?:\\.|[^\s"'/?#\\]){1,400}@""")

# Names whose values are recorded, by how they begin: those by which people change the speed of NCCL, Horovod, OpenMP,
# MKL, Gloo, TensorFlow, PyTorch, XLA, CUDA, malloc, MPI, UCX and libfabric, as their manuals write them, and what SLURM
# has allocated. A name that is missing here costs its value in the record, no more.
RECORDED_BY_PREFIX = {
    "NCCL_": (
        "ALGO ASYNC_ERROR_HANDLING BLOCKING_WAIT BUFFSIZE CHECKS_DISABLE CHECK_POINTERS COLLNET_ENABLE "
        "COLLNET_NODE_THRESHOLD COMM_BLOCKING CONF_FILE CROSS_NIC CTA_POLICY CUMEM_ENABLE CUMEM_HOST_ENABLE DEBUG "
        "DEBUG_FILE DEBUG_SUBSYS DMABUF_ENABLE GDRCOPY_ENABLE GRAPH_FILE GRAPH_MIXING_SUPPORT GRAPH_REGISTER "
        "IB_ADAPTIVE_ROUTING IB_AR_THRESHOLD IB_CUDA_SUPPORT IB_DISABLE IB_ECE_ENABLE IB_GID_INDEX IB_HCA "
        "IB_MERGE_NICS IB_MERGE_VFS IB_PCI_RELAXED_ORDERING IB_QPS_PER_CONNECTION IB_RETRY_CNT IB_SL "
        "IB_SPLIT_DATA_ON_QPS IB_TC IB_TIMEOUT IGNORE_CPU_AFFINITY LAUNCH_MODE LL128_BUFFSIZE LL_BUFFSIZE "
        "LL_THRESHOLD LOCAL_REGISTER MAX_CTAS MAX_NCHANNELS MAX_NRINGS MAX_P2P_NCHANNELS MIN_CTAS MIN_NCHANNELS "
        "MIN_NRINGS MIN_P2P_NCHANNELS MNNVL_ENABLE NCHANNELS_PER_NET_PEER NET NETDEVS_POLICY NET_DISABLE_INTRA "
        "NET_FORCE_FLUSH NET_GDR_C2C NET_GDR_LEVEL NET_GDR_READ NET_MERGE_LEVEL NET_PLUGIN NET_SHARED_BUFFERS "
        "NET_SHARED_COMMS NSOCKS_PERTHREAD NTHREADS NVB_DISABLE NVLSTREE_MAX_CHUNKSIZE NVLS_ENABLE "
        "P2P_DIRECT_DISABLE P2P_DISABLE P2P_LEVEL P2P_NET_CHUNKSIZE P2P_NVL_CHUNKSIZE P2P_PCI_CHUNKSIZE "
        "P2P_PXN_LEVEL PROFILER_PLUGIN PROTO PXN_C2C PXN_DISABLE RAS_ENABLE RUNTIME_CONNECT SET_STACK_SIZE "
        "SET_THREAD_NAME SHM_DISABLE SHM_LOCALITY SHM_USE_CUDA_MEMCPY SINGLE_RING_THRESHOLD SOCKET_FAMILY "
        "SOCKET_IFNAME SOCKET_NTHREADS SOCKET_RETRY_CNT SOCKET_RETRY_SLEEP_MSEC THREAD_THRESHOLDS TOPO_DUMP_FILE "
        "TOPO_DUMP_FILE_RANK TOPO_FILE TREE_THRESHOLD TUNER_PLUGIN WIN_ENABLE WIN_STRIDE WORK_ARGS_BYTES "
        "WORK_FIFO_BYTES"
    ),
    "HOROVOD_": (
        "ADASUM_MPI_CHUNK_SIZE AUTOTUNE AUTOTUNE_BAYES_OPT_MAX_SAMPLES AUTOTUNE_GAUSSIAN_PROCESS_NOISE AUTOTUNE_LOG "
        "AUTOTUNE_STEPS_PER_SAMPLE AUTOTUNE_WARMUP_SAMPLES BATCH_D2D_MEMCOPIES CACHE_CAPACITY CONTROLLER "
        "CPU_OPERATIONS CYCLE_TIME DISABLE_GROUP_FUSION DYNAMIC_PROCESS_SETS ELASTIC ENABLE_ASYNC_COMPLETION "
        "ENABLE_XLA_OPS FUSION_THRESHOLD GLOO_IFACE GLOO_TIMEOUT_SECONDS GPU_OPERATIONS HIERARCHICAL_ALLGATHER "
        "HIERARCHICAL_ALLREDUCE LOG_HIDE_TIMESTAMP LOG_LEVEL MPI_THREADS_DISABLE NUM_NCCL_STREAMS "
        "STALL_CHECK_DISABLE STALL_CHECK_TIME_SECONDS STALL_SHUTDOWN_TIME_SECONDS THREAD_AFFINITY TIMELINE "
        "TIMELINE_MARK_CYCLES"
    ),
    "OMP_": (
        "ALLOCATOR CANCELLATION DEFAULT_DEVICE DISPLAY_AFFINITY DISPLAY_ENV DYNAMIC MAX_ACTIVE_LEVELS "
        "MAX_TASK_PRIORITY NESTED NUM_TEAMS NUM_THREADS PLACES PROC_BIND SCHEDULE STACKSIZE TARGET_OFFLOAD "
        "TEAMS_THREAD_LIMIT THREAD_LIMIT TOOL WAIT_POLICY"
    ),
    "KMP_": (
        "AFFINITY ALL_THREADS BLOCKTIME DETERMINISTIC_REDUCTION DUPLICATE_LIB_OK FORCE_REDUCTION FORKJOIN_BARRIER "
        "HW_SUBSET INHERIT_FP_CONTROL INIT_AT_FORK LIBRARY PLACE_THREADS PLAIN_BARRIER REDUCTION_BARRIER SETTINGS "
        "STACKSIZE TOPOLOGY_METHOD TPAUSE USER_LEVEL_MWAIT WARNINGS"
    ),
    "MKL_": (
        "CBWR DEBUG_CPU_TYPE DOMAIN_NUM_THREADS DYNAMIC ENABLE_INSTRUCTIONS INTERFACE_LAYER NUM_STRIPES NUM_THREADS "
        "THREADING_LAYER VERBOSE"
    ),
    "GLOO_": "DEVICE_TRANSPORT SOCKET_IFNAME",
    "TF_": (
        "CPP_MAX_VLOG_LEVEL CPP_MIN_LOG_LEVEL CPP_MIN_VLOG_LEVEL CPP_VMODULE CUDNN_DETERMINISTIC CUDNN_USE_AUTOTUNE "
        "CUDNN_USE_FRONTEND DETERMINISTIC_OPS DISABLE_MKL DISABLE_MLIR_BRIDGE ENABLE_CUBLAS_TENSOR_OP_MATH "
        "ENABLE_CUDNN_TENSOR_OP_MATH ENABLE_LAYOUT_OPT ENABLE_ONEDNN_OPTS ENABLE_WINOGRAD_NONFUSED "
        "FORCE_GPU_ALLOW_GROWTH GPU_ALLOCATOR GPU_THREAD_COUNT GPU_THREAD_MODE NUM_INTEROP_THREADS "
        "NUM_INTRAOP_THREADS ONEDNN_DEFAULT_FPMATH_MODE SYNC_ON_FINISH USE_CUDNN_BATCHNORM_SPATIAL_PERSISTENT "
        "USE_LEGACY_KERAS XLA_FLAGS"
    ),
    "TORCH_": (
        "ALLOW_TF32_CUBLAS_OVERRIDE BLAS_PREFER_CUBLASLT BLAS_PREFER_HIPBLASLT COMPILE_DEBUG CPP_LOG_LEVEL "
        "CUDNN_SDPA_ENABLED CUDNN_V8_API_DISABLED CUDNN_V8_API_LRU_CACHE_LIMIT DISABLE_ADDR2LINE DISTRIBUTED_DEBUG "
        "LINALG_PREFER_CUSOLVER LOGS NCCL_ASYNC_ERROR_HANDLING NCCL_AVOID_RECORD_STREAMS NCCL_BLOCKING_WAIT "
        "NCCL_CUDA_EVENT_CACHE NCCL_DESYNC_DEBUG NCCL_DUMP_ON_TIMEOUT NCCL_ENABLE_MONITORING NCCL_ENABLE_TIMING "
        "NCCL_HEARTBEAT_TIMEOUT_SEC NCCL_HIGH_PRIORITY NCCL_NAN_CHECK NCCL_RETHROW_CUDA_ERRORS "
        "NCCL_TRACE_BUFFER_SIZE NCCL_USE_COMM_NONBLOCKING NCCL_USE_TENSOR_REGISTER_ALLOCATOR_HOOK NCCL_ZERO_COPY "
        "SHOW_CPP_STACKTRACES SHOW_DISPATCH_TRACE"
    ),
    "PYTORCH_": "ALLOC_CONF CUDA_ALLOC_CONF HIP_ALLOC_CONF JIT NO_CUDA_MEMORY_CACHING NVML_BASED_CUDA_CHECK",
    "XLA_": "FLAGS PYTHON_CLIENT_ALLOCATOR PYTHON_CLIENT_MEM_FRACTION PYTHON_CLIENT_PREALLOCATE",
    "CUDA_": (
        "AUTO_BOOST CACHE_DISABLE CACHE_MAXSIZE DEVICE_DEFAULT_PERSISTING_L2_CACHE_PERCENTAGE_LIMIT "
        "DEVICE_MAX_CONNECTIONS DEVICE_ORDER DISABLE_PTX_JIT FORCE_PTX_JIT HOME LAUNCH_BLOCKING "
        "MANAGED_FORCE_DEVICE_ALLOC MODULE_LOADING MPS_ACTIVE_THREAD_PERCENTAGE MPS_PINNED_DEVICE_MEM_LIMIT PATH "
        "SCALE_LAUNCH_QUEUES VERSION VISIBLE_DEVICES"
    ),
    "CUDNN_": "CONV_WSCAP_DBG LOGDEST_DBG LOGERR_DBG LOGINFO_DBG LOGLEVEL_DBG",
    "CUBLAS_": "EMULATE_SINGLE_PRECISION LOGDEST_DBG LOGINFO_DBG WORKSPACE_CONFIG",
    "MALLOC_": "ARENA_MAX ARENA_TEST CHECK_ CONF MMAP_MAX_ MMAP_THRESHOLD_ PERTURB_ TOP_PAD_ TRIM_THRESHOLD_",
    "OMPI_MCA_": (
        "btl btl_base_verbose btl_openib_allow_ib btl_openib_if_include btl_sm_use_cma btl_tcp_if_exclude "
        "btl_tcp_if_include btl_tcp_links btl_vader_single_copy_mechanism coll coll_hcoll_enable "
        "coll_tuned_allreduce_algorithm coll_tuned_use_dynamic_rules hwloc_base_binding_policy "
        "hwloc_base_mem_alloc_policy mpi_yield_when_idle mtl oob_tcp_if_exclude oob_tcp_if_include "
        "opal_common_ucx_devices opal_common_ucx_tls opal_cuda_support osc plm pml pml_ucx_devices pml_ucx_tls "
        "rmaps_base_mapping_policy rmaps_base_oversubscribe shmem"
    ),
    "PRTE_MCA_": "plm prte_if_exclude prte_if_include rmaps_default_mapping_policy",
    "PMIX_MCA_": "gds pcompress_base_silence_warning psec ptl",
    "UCX_": (
        "CUDA_COPY_MAX_REG_RATIO CUDA_IPC_CACHE IB_ADDR_TYPE IB_GID_INDEX IB_GPU_DIRECT_RDMA "
        "IB_PCI_RELAXED_ORDERING IB_SL IB_TRAFFIC_CLASS LOG_LEVEL MAX_EAGER_RAILS MAX_RNDV_RAILS MEMTYPE_CACHE "
        "NET_DEVICES PROTO_ENABLE RNDV_FRAG_MEM_TYPE RNDV_SCHEME RNDV_THRESH SHM_DEVICES SOCKADDR_TLS_PRIORITY TLS "
        "UNIFIED_MODE WARN_UNUSED_ENV_VARS ZCOPY_THRESH"
    ),
    "I_MPI_": (
        "ADJUST_ALLGATHER ADJUST_ALLREDUCE ADJUST_BCAST ADJUST_REDUCE ADJUST_REDUCE_SCATTER ASYNC_PROGRESS "
        "COLL_INTRANODE DEBUG FABRICS HYDRA_BOOTSTRAP HYDRA_IFACE OFFLOAD OFI_LIBRARY_INTERNAL OFI_PROVIDER PIN "
        "PIN_CELL PIN_DOMAIN PIN_ORDER PIN_PROCESSOR_LIST PMI_LIBRARY SHM SPIN_COUNT THREAD_SPLIT"
    ),
    "MPICH_": (
        "ASYNC_PROGRESS GPU_ALLREDUCE_USE_KERNEL GPU_IPC_ENABLED GPU_SUPPORT_ENABLED MAX_THREAD_SAFETY "
        "NEMESIS_NETMOD OFI_NIC_MAPPING OFI_NIC_POLICY OFI_NUM_NICS RANK_REORDER_METHOD SMP_SINGLE_COPY_MODE"
    ),
    "FI_": (
        "CXI_ATS CXI_DEFAULT_CQ_SIZE CXI_DEFAULT_TX_SIZE CXI_DISABLE_HOST_REGISTER CXI_RDZV_GET_MIN CXI_RDZV_PROTO "
        "CXI_RX_MATCH_MODE EFA_ENABLE_SHM_TRANSFER EFA_FORK_SAFE EFA_USE_DEVICE_RDMA EFA_USE_HUGE_PAGE HMEM "
        "LOG_LEVEL MR_CACHE_MONITOR PROVIDER PSM3_NIC SOCKETS_IFACE TCP_IFACE UNIVERSE_SIZE VERBS_IFACE"
    ),
    "SLURM_": (
        "CLUSTER_NAME CPUS_ON_NODE CPUS_PER_GPU CPUS_PER_TASK CPU_BIND CPU_BIND_LIST CPU_BIND_TYPE CPU_BIND_VERBOSE "
        "CPU_FREQ_REQ DISTRIBUTION GPUS GPUS_ON_NODE GPUS_PER_NODE GPUS_PER_SOCKET GPUS_PER_TASK GPU_BIND GPU_FREQ "
        "GRES GRES_FLAGS HINT JOBID JOB_CPUS_PER_NODE JOB_GPUS JOB_ID JOB_NODELIST JOB_NUM_NODES JOB_PARTITION "
        "JOB_QOS LOCALID MEM_BIND MEM_BIND_LIST MEM_BIND_TYPE MEM_PER_CPU MEM_PER_GPU MEM_PER_NODE NNODES NODELIST "
        "NPROCS NTASKS NTASKS_PER_CORE NTASKS_PER_GPU NTASKS_PER_NODE NTASKS_PER_SOCKET NTASKS_PER_TRES PROCID "
        "STEP_GPUS TASKS_PER_NODE THREADS_PER_CORE TRES_PER_TASK"
    ),
}
RECORDED_VARIABLES = frozenset(
    [prefix + name for prefix, names in RECORDED_BY_PREFIX.items() for name in names.split()]
    + ["LD_PRELOAD", "NVIDIA_TF32_OVERRIDE"]
)


def select_recorded(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that a record keeps, sorted: NOT_PASSED for FOREIGN_SETTINGS, HIDDEN_VALUE for others that
    are not on the list, and nothing of those that look secret."""
    recorded = {}
    for name in sorted(environment):
        if name in RECORDED_VARIABLES:
            recorded[name] = mask_credentials(environment[name])
        elif FOREIGN_SETTINGS.match(name) and not SECRET_VARIABLES.search(name):
            recorded[name] = NOT_PASSED
        elif (FRAMEWORK_VARIABLES.match(name) or SYSTEM_VARIABLES.match(name)) and not SECRET_VARIABLES.search(name):
            recorded[name] = HIDDEN_VALUE
    return recorded


def drop_launch_variables(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without those of the launch that this process is from."""
    return {name: value for name, value in environment.items() if not LAUNCH_VARIABLES.match(name)}


def drop_foreign_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the variables without the settings of other programs; hardware.environment is where a run has its own."""
    return {name: value for name, value in environment.items() if not FOREIGN_SETTINGS.match(name)}


def bypass_proxies(environment: Mapping[str, str], hosts: Iterable[str]) -> dict[str, str]:
    """Return the variables by which programs reach these hosts without a proxy; none where no proxy is set."""
    if not any(environment.get(name) or environment.get(name.upper()) for name in PROXIES):
        return {}
    lists = {name: environment.get(name, "") for name in NO_PROXY if name in environment or name != "no_grpc_proxy"}
    return {name: ",".join(dict.fromkeys([*filter(None, text.split(",")), *hosts])) for name, text in lists.items()}


def mask_credentials(text: str) -> str:
    """Return a text in which addresses have `***` for their user and password: `https://***@host/path`."""
    return URL_CREDENTIALS.sub("***@", text) if "://" in text else text
