# The server, with the model in runs/mine and its languages:
#     docker build --tag transduce .
#     docker run --publish 127.0.0.1:5000:5000 --volume ./runs/mine:/models/mine:ro transduce

FROM python:3.13 AS build
COPY . /source
RUN pip wheel --no-cache-dir --constraint /source/constraints.txt --wheel-dir /wheels \
    '/source[serve]'

FROM python:3.13-slim
# hadolint ignore=DL3013
RUN --mount=type=bind,from=build,source=/wheels,target=/wheels \
    pip install --no-cache-dir --no-index --find-links /wheels 'transduce[serve]' \
    && useradd --uid 10001 --no-create-home --shell /usr/sbin/nologin transduce
USER 10001
EXPOSE 5000
# Without the proxy that Docker's configuration may name for all containers.
HEALTHCHECK --interval=30s --timeout=5s --start-period=30s CMD ["python", "-c", "\
from urllib.request import ProxyHandler, build_opener as opener; \
opener(ProxyHandler({})).open('http://127.0.0.1:5000/health')"]
ENTRYPOINT ["transduce"]
CMD ["serve", "/models/mine", "--host", "0.0.0.0", "--port", "5000"]
