# syntax=docker/dockerfile:1
# nanoeuler with its locked packages, for a CPU or for NVIDIA GPUs.
#
#   docker build -t nanoeuler .
#   docker build -t nanoeuler:cuda13 --build-arg LOCK=cuda13 .     # or cuda12
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD/run:/run/nanoeuler" nanoeuler
#   docker run --rm --gpus all … nanoeuler:cuda13 --configfile /opt/nanoeuler/config/base.yaml
#
# The packages of CUDA come with the lock; of the host, a GPU needs the driver and NVIDIA's
# container toolkit alone.
FROM python:3.13-slim-bookworm AS packages
ARG LOCK=core
WORKDIR /opt/nanoeuler
COPY requirements/ requirements/
RUN python -m venv .venv \
 && .venv/bin/python -m pip install --no-cache-dir --disable-pip-version-check --no-compile \
    --require-hashes -r "requirements/$LOCK.txt"
COPY LICENSE README.md pyproject.toml Snakefile ./
COPY config/ config/
COPY models/ models/
COPY profiles/ profiles/
COPY workflow/ workflow/
COPY nanoeuler/ nanoeuler/
RUN .venv/bin/python -m pip install --no-cache-dir --disable-pip-version-check --no-compile \
    --no-deps --no-build-isolation -e . \
 && .venv/bin/python -m compileall -q -j 0 -x '/tests/' .venv/lib nanoeuler

FROM python:3.13-slim-bookworm
COPY --from=packages /opt/nanoeuler /opt/nanoeuler
# Caches, as of machine code, are in the folder of the run, which any user may mount. The user has no
# entry in /etc/passwd, and Snakemake asks for a name.
ENV PATH=/opt/nanoeuler/.venv/bin:$PATH HOME=/run/nanoeuler USER=nanoeuler
WORKDIR /run/nanoeuler
RUN chmod 1777 /run/nanoeuler
USER 1000:1000
ENTRYPOINT ["snakemake", "--snakefile", "/opt/nanoeuler/Snakefile"]
CMD ["--configfile", "/opt/nanoeuler/config/config.yaml"]
