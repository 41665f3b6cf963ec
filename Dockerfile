# The image that trains. `make train` and Compose build it; by hand:
#
#     docker build --tag lockstep .                                # the newest CUDA line
#     docker build --tag lockstep --build-arg CUDA=cuda12 .        # for drivers from 525 on
#     docker build --tag lockstep-dev --target dev .               # with compiler, tests and editor needs
#
# Needs BuildKit: Docker 23 or newer, or DOCKER_BUILDKIT=1. The wheels bring CUDA's libraries, so the
# small base will do.

ARG CUDA=cuda13
ARG BASE_IMAGE

# The table of CUDA lines, and the only place that knows. A row is a stage: its base image (with its
# digest, once `make pin-images` has recorded one), the least driver, and the compute capabilities its
# torch was compiled for; the lock is requirements/<line>.txt. host/lines.py reads it for the rest.
# The newest line stands first. NVIDIA_REQUIRE_CUDA: the base's own list of driver branches names no
# GeForce, which would be turned away although the wheels run there.
FROM ${BASE_IMAGE:-nvidia/cuda:13.2.1-base-ubuntu24.04} AS cuda13
LABEL dev.lockstep.driver="580" dev.lockstep.capabilities="7.5 8.0 8.6 9.0 10.0 12.0"
ENV NVIDIA_REQUIRE_CUDA="cuda>=13.0"

FROM ${BASE_IMAGE:-nvidia/cuda:12.8.1-base-ubuntu24.04} AS cuda12
LABEL dev.lockstep.driver="525" dev.lockstep.capabilities="7.0 7.5 8.0 8.6 9.0 10.0 12.0"
ENV NVIDIA_REQUIRE_CUDA="cuda>=12.0"


# Python; a C++ compiler and Python.h for torch.compile; and what NCCL loads to talk over InfiniBand.
FROM ${CUDA} AS base
# A date such as 20261101T000000Z takes packages as they were then, where the distribution keeps them.
ARG APT_SNAPSHOT=
# Dates of files, in seconds; see container/image/settle.
ARG SOURCE_DATE_EPOCH=1767225600
COPY container/image/apt /usr/local/bin/apt-install
COPY container/image/settle /usr/local/bin/settle
SHELL ["/usr/local/bin/settle", "/bin/bash", "-euo", "pipefail", "-c"]
# hadolint shell=/bin/bash
RUN apt-install g++ ibverbs-providers libc6-dev libibverbs1 python3 python3-dev
# The driver's own libcuda is the one to use: the base's forward-compatibility copy runs on data
# centre GPUs only, and ends in error 804 elsewhere.
RUN rm -rf /usr/local/cuda*/compat /etc/ld.so.conf.d/*compat* && ldconfig && \
    rm -f /var/cache/ldconfig/aux-cache


# uv at the lock's own version; nothing else of this stage is kept.
FROM base AS tools
# hadolint shell=/bin/bash
ARG CUDA
RUN apt-install python3-venv
COPY requirements/${CUDA}.txt /tmp/lock.txt
RUN --mount=type=cache,id=lockstep-pip,target=/root/.cache/pip \
    python3 -m venv /tools && \
    awk '/^uv==/ { on = 1 } on { print } on && !/\\$/ { exit }' /tmp/lock.txt >/tmp/uv.txt && \
    /tools/bin/python -m pip install --quiet --require-hashes --requirement /tmp/uv.txt


FROM base AS train
# hadolint shell=/bin/bash
ARG CUDA
ENV VIRTUAL_ENV=/opt/venv PATH=/opt/venv/bin:$PATH
COPY requirements/${CUDA}.txt /lockstep/requirements/
# Bytecode that is checked by hash has no time of day in it, and a read-only image never goes stale.
RUN --mount=type=bind,from=tools,source=/tools,target=/tools \
    --mount=type=cache,id=lockstep-uv,target=/root/.cache/uv \
    echo "installing requirements/${CUDA}.txt: several GB the first time" && \
    export UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 PYC_INVALIDATION_MODE=UNCHECKED_HASH && \
    /tools/bin/uv venv --quiet --python /usr/bin/python3 /opt/venv && \
    /tools/bin/uv pip sync --require-hashes /lockstep/requirements/${CUDA}.txt && \
    cksum /lockstep/requirements/${CUDA}.txt >/tmp/sum && read -r sum _ </tmp/sum && rm /tmp/sum && \
    touch "/opt/venv/.installed-${CUDA}-${sum}"

WORKDIR /lockstep
COPY LICENSE pyproject.toml ./
COPY container/image/entrypoint container/image/lockstep /usr/local/bin/
COPY configs configs
COPY doctor doctor
COPY host host
COPY train train
# The base by name, which the head of this file knows and its stages do not.
ARG BASE_NAME=unknown
COPY container/image/identity /usr/local/bin/lockstep-identity
RUN mkdir -p runs data /cache && chmod 1777 runs /cache && \
    echo /lockstep >"$(echo /opt/venv/lib/python3.*/site-packages)/lockstep.pth" && \
    lockstep-identity "${CUDA}" "${BASE_NAME}" >/etc/lockstep-image.json && \
    chmod -R u=rwX,go=rX /lockstep /usr/local/bin && chmod 1777 runs && rm -rf /tools /root/.cache && \
    find /lockstep /usr/local/bin -exec touch {} + && touch / /root /usr/local
# Any UID will do, with an entry in /etc/passwd or without: libraries ask for a name and a home.
ENV USER=lockstep LOGNAME=lockstep HOME=/cache XDG_CACHE_HOME=/cache \
    HF_HOME=/cache/huggingface TORCH_HOME=/cache/torch \
    TORCHINDUCTOR_CACHE_DIR=/cache/inductor TRITON_CACHE_DIR=/cache/triton WANDB_DIR=/lockstep/runs \
    PYTHONUNBUFFERED=1 CUDA_LINE=${CUDA}
USER 1000:1000
ENTRYPOINT ["entrypoint"]
CMD ["fit", "--config", "configs/digits.yaml"]
ARG REVISION=unknown
ARG LOCK_SHA256=unknown
ARG TORCH=unknown
ARG INPUTS=unknown
ARG CHECKOUT=unknown
LABEL org.opencontainers.image.title="Lockstep" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.revision="${REVISION}" \
      org.opencontainers.image.base.name="${BASE_NAME}" \
      dev.lockstep.cuda="${CUDA}" \
      dev.lockstep.torch="${TORCH}" \
      dev.lockstep.lock="${LOCK_SHA256}" \
      dev.lockstep.inputs="${INPUTS}" \
      dev.lockstep.checkout="${CHECKOUT}"


# The same, with the tests' tools and what an editor wants. The checkout is mounted over /lockstep.
FROM train AS dev
# hadolint shell=/bin/bash
USER 0
RUN apt-install git make openssh-client procps less
COPY requirements/dev.txt /lockstep/requirements/
RUN --mount=type=cache,id=lockstep-uv,target=/root/.cache/uv \
    chmod 644 /lockstep/requirements/dev.txt && touch /lockstep/requirements/dev.txt && \
    export UV_CACHE_DIR=/root/.cache/uv UV_LINK_MODE=copy UV_COMPILE_BYTECODE=1 PYC_INVALIDATION_MODE=UNCHECKED_HASH && \
    uv pip install --require-hashes --requirement /lockstep/requirements/dev.txt && \
    cksum /lockstep/requirements/dev.txt >/tmp/sum && read -r sum _ </tmp/sum && rm /tmp/sum && \
    touch "/opt/venv/.installed-dev-${sum}"
# Editors want a user by name; the base has one of UID 1000, or gets it.
RUN id 1000 >/dev/null 2>&1 || useradd --create-home --uid 1000 --shell /bin/bash ubuntu
USER 1000:1000
CMD ["bash"]
