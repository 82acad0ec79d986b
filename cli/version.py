"""Which mgr this is."""


def mgr_version() -> str:
    from importlib.metadata import PackageNotFoundError, version

    try:
        return version("mgr")
    except PackageNotFoundError:
        return "0 (not installed)"
