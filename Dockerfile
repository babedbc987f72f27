# A campaign in a container:
#
#   docker build -t schedfuzz .
#   docker run -v "$PWD/out:/out" -v schedfuzz-cache:/cache schedfuzz
#
# Results are in /out; the vLLM release is fetched into /cache by the first run. Other commands: docker run schedfuzz --help
FROM python:3.11-slim

RUN useradd --create-home schedfuzz \
    && mkdir -p /out /cache /opt/schedfuzz \
    && chown schedfuzz:schedfuzz /out /cache /opt/schedfuzz

USER schedfuzz
WORKDIR /opt/schedfuzz
COPY --chown=schedfuzz:schedfuzz . .
RUN EXTRAS= scripts/setup.sh /opt/schedfuzz/.venv

ENV PYTHONHASHSEED=0 \
    SCHEDFUZZ_CACHE=/cache \
    PATH=/opt/schedfuzz/.venv/bin:$PATH
VOLUME ["/out", "/cache"]
# Without --out a campaign makes out/run-1, out/run-2, ... below the working directory: in the volume.
WORKDIR /
ENTRYPOINT ["schedfuzz"]
CMD ["run", "--vllm", "0.33.0", "--seconds", "3600"]
