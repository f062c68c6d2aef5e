# `gemlet serve`, from the wheels in dist/: `make wheels`, then
#
#     docker build -f packaging/docker/serve.Dockerfile -t gemlet-serve:0.2.0 .
#
# RUNTIMES: extras that run models; PyTorch brings CUDA's libraries, 3 GB. For ONNX models on CPUs alone: RUNTIMES=onnx.
ARG BASE=docker.io/library/python:3.13-slim-bookworm
FROM ${BASE}
ARG RUNTIMES=torch

RUN --mount=type=bind,source=dist,target=/dist \
    pip install --no-cache-dir --only-binary=gemlet --find-links=/dist "gemlet[serve,otel,${RUNTIMES}]==0.2.0"

ENV PYTHONDONTWRITEBYTECODE=1 HOME=/tmp NVIDIA_DRIVER_CAPABILITIES=compute,utility
USER 65532:65532
ENTRYPOINT ["gemlet"]
CMD ["serve", "/models"]
