# The guard in front of vLLM's official image: only the name of the image changes, the words behind it stay as they are. docs/containers.md
#
#   docker build --tag vllm-guard .
#   docker run --gpus all --ipc=host -p 8000:8000 vllm-guard Qwen/Qwen3-0.6B

ARG BASE_IMAGE=vllm/vllm-openai
ARG BASE_VERSION=v0.33.0

# A stage for the wheel: sources and what builds them stay out of the image.
FROM ${BASE_IMAGE}:${BASE_VERSION} AS wheel
# pip's own variables: PIP_INDEX_URL for a mirror; for a build without a network PIP_NO_INDEX=1 and PIP_FIND_LINKS=/src/wheelhouse, a folder of wheels in
# the build context.
ARG PIP_INDEX_URL PIP_NO_INDEX PIP_FIND_LINKS
COPY . /src
RUN python3 -m pip wheel --no-cache-dir --no-deps --wheel-dir /src/dist /src

FROM ${BASE_IMAGE}:${BASE_VERSION}
ARG BASE_IMAGE BASE_VERSION PIP_INDEX_URL PIP_NO_INDEX PIP_FIND_LINKS
# Beside vLLM, by its own Python. Every package that is there is a constraint: what vLLM was built with stays, or the build fails.
# The link is for who overrides the entrypoint with `vllm serve ...`, also in a shell: it stands before vLLM's own on PATH.
RUN --mount=type=bind,from=wheel,source=/src,target=/src \
    export PIP_BREAK_SYSTEM_PACKAGES=1 PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_ROOT_USER_ACTION=ignore && \
    python3 -m pip list --format=freeze >/tmp/installed && \
    python3 -m pip install --no-cache-dir --constraint /tmp/installed /src/dist/*.whl && \
    rm /tmp/installed && \
    mkdir -p /opt/vllm-guard/bin && \
    ln -s "$(command -v vllm-guard)" /opt/vllm-guard/bin/vllm
ENV PATH=/opt/vllm-guard/bin:$PATH

LABEL org.opencontainers.image.title="vllm-guard" \
      org.opencontainers.image.description="vLLM with vllm-guard in front: measures the GPU, fits the memory budget, refuses with the reason, or becomes vLLM" \
      org.opencontainers.image.version="0.1.0" \
      org.opencontainers.image.licenses="Apache-2.0" \
      org.opencontainers.image.base.name="${BASE_IMAGE}:${BASE_VERSION}"

# Like the base's ["vllm", "serve"], and PID 1 becomes vLLM. `serve MODEL`, `--model MODEL` and the older module form are understood too.
ENTRYPOINT ["vllm-guard", "serve"]
