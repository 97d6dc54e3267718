# One machine without a GPU. Not built here: the tests only check its sources and packages.
#   docker build -t cl2r .
#   docker run --rm --shm-size 2g -v "$PWD/results:/results" cl2r study ablation
# Results are written to /results, which user 1000 must be able to write to; own data: -v "$PWD/data:/data:ro" and
# --data /data. With CUDA: --build-arg TORCH_INDEX=https://pypi.org/simple. For a cluster see cluster/Dockerfile.
FROM python:3.11-slim

ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
RUN pip install --no-cache-dir --index-url "$TORCH_INDEX" "torch>=2.6,<3" "torchvision>=0.21,<1"

WORKDIR /opt/cl2r
COPY pyproject.toml README.md LICENSE ./
COPY cl2r cl2r
COPY analysis analysis
COPY studies studies
RUN pip install --no-cache-dir . \
    && useradd --create-home --uid 1000 cl2r \
    && mkdir /results && chown cl2r /results

ENV CL2R_STORAGE=/results RAY_USAGE_STATS_ENABLED=0
USER cl2r
WORKDIR /home/cl2r
VOLUME /results
ENTRYPOINT ["cl2r"]
CMD ["--help"]
