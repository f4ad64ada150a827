"""From settings to an etcd store: addresses, certificates, password."""

from __future__ import annotations

import ssl
from pathlib import Path

from kvferry.config import ClusterOptions, parse_endpoints, read_small_file
from kvferry.errors import ConfigError
from kvferry.meta.etcd.gateway import Gateway, Login
from kvferry.meta.etcd.store import EtcdStore


def open_etcd(options: ClusterOptions) -> EtcdStore:
    """Return the etcd store that the settings describe; contacts nobody yet. Raises ConfigError."""
    urls = parse_endpoints(options.store)
    login = _login(options)
    context = _tls(options) if options.store.startswith("etcds://") else None
    if context is None and (options.ca_file or options.cert_file or options.key_file):
        raise ConfigError(f"cluster.ca_file, cert_file and key_file need etcds://, not {options.store}")
    return EtcdStore(Gateway(urls, login=login, tls=context))


def _login(options: ClusterOptions) -> Login | None:
    if not options.user and not options.password_file:
        return None
    if not (options.user and options.password_file):
        raise ConfigError("cluster.user and cluster.password_file belong together; give both or none")
    try:
        password = read_small_file(Path(options.password_file)).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cluster.password_file: cannot read {options.password_file!r}: {error}") from error
    if not password:
        raise ConfigError(f"cluster.password_file: {options.password_file!r} is empty")
    return Login(options.user, password)


def _tls(options: ClusterOptions) -> ssl.SSLContext:
    if bool(options.cert_file) != bool(options.key_file):
        raise ConfigError("cluster.cert_file and cluster.key_file belong together; give both or none")
    try:
        context = ssl.create_default_context(cafile=options.ca_file or None)
        if options.cert_file:
            context.load_cert_chain(options.cert_file, options.key_file)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"cluster.ca_file, cert_file or key_file cannot be used: {error}") from error
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    return context
