"""Ollama's routes."""

from collections.abc import Mapping

from daemon.description.options import (
    CALL,
    COUNT,
    EXTRAS,
    JSON_SCHEMA,
    KEEP_ALIVE,
    LOGPROB,
    MAX_INT,
    MAX_WINDOW,
    SAMPLING,
    STOP,
    THINK,
    TOOL,
    TOOL_CHOICE,
    messages,
)
from daemon.description.schema import (
    ANYTHING,
    BOOLEAN,
    INTEGER,
    MODEL_ERRORS,
    NDJSON,
    NUMBER,
    SOME_STRING,
    STRING,
    Operation,
    Schema,
    array,
    either,
    obj,
    one_of,
    optional,
    within,
)

ERROR: Schema = obj("error", error=STRING)

_OPTIONS = optional(
    obj(
        **SAMPLING
        | {
            "temperature": within(NUMBER, 0, 100),
            "num_predict": either(within(INTEGER, -MAX_INT, -1), COUNT),
            "num_ctx": within(INTEGER, 0, MAX_WINDOW),
            "num_gpu": within(INTEGER, -1, 100_000),
            "num_thread": within(INTEGER, 0, 1024),
            "num_batch": within(INTEGER, 0, 65_536),
            "main_gpu": within(INTEGER, 0, 1023),
            "use_mmap": BOOLEAN,
            "stop": STOP,
        }
    )
)
_SHARED: dict[str, Schema] = {
    "model": SOME_STRING,
    "stream": BOOLEAN,
    "keep_alive": KEEP_ALIVE,
    "options": _OPTIONS,
    "format": either(one_of("json", ""), JSON_SCHEMA),
    "think": THINK,
    "truncate": BOOLEAN,
    "shift": BOOLEAN,
    "logprobs": BOOLEAN,
    "top_logprobs": within(INTEGER, 0, 20),
}
_MESSAGE = optional(
    obj(
        "role",
        role=one_of("system", "user", "assistant", "tool"),
        content=STRING,
        thinking=STRING,
        images=array(STRING),
        tool_calls=array(CALL),
        tool_name=STRING,
        tool_call_id=STRING,
    )
)
_METRICS: dict[str, Schema] = {
    "done": BOOLEAN,
    "done_reason": one_of("stop", "length", "load", "unload"),
    "total_duration": INTEGER,
    "load_duration": INTEGER,
    "prompt_eval_count": INTEGER,
    "prompt_eval_duration": INTEGER,
    "eval_count": INTEGER,
    "eval_duration": INTEGER,
    "logprobs": array(LOGPROB),
    **EXTRAS,
}
_ANSWERED = obj(
    "role content", role=STRING, content=STRING, thinking=STRING, tool_calls=array(CALL), images=array(STRING)
)
_HEAD: dict[str, Schema] = {"model": STRING, "created_at": {"type": "string", "format": "date-time"}}
_CHAT_LINE = obj("model created_at message done", **_HEAD, message=_ANSWERED, **_METRICS)
_GENERATE_LINE = obj(
    "model created_at response done",
    **_HEAD,
    response=STRING,
    thinking=STRING,
    context=array(INTEGER),
    **_METRICS,
)

_DETAILS = obj(
    parent_model=STRING,
    format=STRING,
    family=STRING,
    families=either(array(STRING), {"type": "null"}),
    parameter_size=STRING,
    quantization_level=STRING,
    context_length=either(INTEGER, {"type": "null"}),
    embedding_length=either(INTEGER, {"type": "null"}),
)
_LISTED: dict[str, Schema] = {
    "name": STRING,
    "model": STRING,
    "size": INTEGER,
    "digest": STRING,
    "details": _DETAILS,
}
_NAMED = obj("model", model=SOME_STRING)
_STATUS = obj("status", status=STRING, digest=STRING, total=INTEGER, completed=INTEGER, model=STRING)
_FILES: Schema = {"type": "object", "additionalProperties": STRING}
# What is not built is 501 here.
_ERRORS = (*MODEL_ERRORS, 501)
_ACCOUNT = Operation("an account of a cloud service, which mgr has not", None, errors=(401, 403, 501))

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("POST", "/api/chat"): Operation(
        "answer a conversation",
        _CHAT_LINE,
        optional(
            obj(
                "model messages",
                **_SHARED,
                messages=messages(_MESSAGE),
                tools=array(TOOL),
                tool_choice=TOOL_CHOICE,
            )
        ),
        (NDJSON, either(_CHAT_LINE, ERROR)),
        _ERRORS,
    ),
    ("POST", "/api/generate"): Operation(
        "answer or continue a text",
        _GENERATE_LINE,
        optional(
            obj(
                "model",
                **_SHARED,
                prompt=STRING,
                suffix=STRING,
                system=STRING,
                template=STRING,
                raw=BOOLEAN,
                context=array(INTEGER),
                images=array(STRING),
            )
        ),
        (NDJSON, either(_GENERATE_LINE, ERROR)),
        _ERRORS,
    ),
    ("POST", "/api/embed"): Operation(
        "vectors of length 1 for texts",
        obj(
            "model embeddings",
            model=STRING,
            embeddings=array(array(NUMBER)),
            total_duration=INTEGER,
            load_duration=INTEGER,
            prompt_eval_count=INTEGER,
            truncated=array(INTEGER),
        ),
        optional(
            obj(
                "model",
                model=SOME_STRING,
                input=either(STRING, array(STRING)),
                truncate=BOOLEAN,
                dimensions=within(INTEGER, 0, MAX_INT),
                keep_alive=KEEP_ALIVE,
                options=_OPTIONS,
            )
        ),
        errors=MODEL_ERRORS,
    ),
    ("POST", "/api/embeddings"): Operation(
        "a vector for one text, the older form",
        obj("embedding", embedding=array(NUMBER), truncated=BOOLEAN),
        optional(obj("model", model=SOME_STRING, prompt=STRING, keep_alive=KEEP_ALIVE, options=_OPTIONS)),
        errors=MODEL_ERRORS,
    ),
    ("GET", "/api/tags"): Operation(
        "the models in the store",
        obj(
            "models",
            models=array(
                obj("name", **_LISTED, modified_at=STRING, capabilities=array(STRING)),
            ),
        ),
        errors=(401, 403, 500, 507),
    ),
    ("GET", "/api/ps"): Operation(
        "the models that are loaded",
        obj(
            "models",
            models=array(obj("name", **_LISTED, expires_at=STRING, size_vram=INTEGER)),
            waiting=array(obj("model reason requests", model=STRING, reason=STRING, requests=INTEGER)),
        ),
        errors=(401, 403, 500, 507),
    ),
    ("POST", "/api/show"): Operation(
        "all about one model",
        obj(
            "details model_info capabilities modified_at",
            license=STRING,
            modelfile=STRING,
            parameters=STRING,
            template=STRING,
            system=STRING,
            details=_DETAILS,
            messages=array(ANYTHING),
            model_info={"type": "object"},
            projector_info={"type": "object"},
            tensors=array(ANYTHING),
            capabilities=array(STRING),
            modified_at=STRING,
        ),
        optional(obj("model", model=SOME_STRING, verbose=BOOLEAN, system=STRING, options={"type": "object"})),
        errors=(400, 401, 403, 404, 413, 422, 500, 507),
    ),
    ("POST", "/api/pull"): Operation(
        "fetch a model",
        _STATUS,
        optional(
            obj("model", model=SOME_STRING, stream=BOOLEAN, insecure=BOOLEAN, as_=STRING, replace=BOOLEAN)
        ),
        (NDJSON, either(_STATUS, ERROR)),
        (400, 401, 403, 404, 409, 413, 422, 500, 501, 502, 503, 507),
    ),
    ("POST", "/api/push"): Operation(
        "send a model to a registry", None, _NAMED, errors=(400, 401, 403, 413, 501)
    ),
    ("POST", "/api/create"): Operation(
        "make a model from another one or from files",
        _STATUS,
        optional(
            obj(
                "model",
                model=SOME_STRING,
                stream=BOOLEAN,
                from_=STRING,
                files=_FILES,
                adapters=_FILES,
                template=STRING,
                license=either(STRING, array(STRING)),
                system=STRING,
                parameters={"type": "object"},
                messages=array(_MESSAGE),
                quantize=STRING,
            )
        ),
        (NDJSON, either(_STATUS, ERROR)),
        (400, 401, 403, 404, 409, 413, 422, 500, 501, 502, 503, 507),
    ),
    ("POST", "/api/copy"): Operation(
        "give a model another name",
        None,
        obj("source destination", source=SOME_STRING, destination=SOME_STRING),
        errors=(400, 401, 403, 404, 409, 413, 422, 500, 507),
    ),
    ("DELETE", "/api/delete"): Operation(
        "delete a model", None, _NAMED, errors=(400, 401, 403, 404, 413, 422, 500, 507)
    ),
    ("HEAD", "/api/blobs/{digest}"): Operation(
        "is this file in the store?", None, errors=(400, 401, 403, 404, 500)
    ),
    ("POST", "/api/blobs/{digest}"): Operation(
        "put a file into the store",
        None,
        binary=True,
        status=201,
        errors=(200, 400, 401, 403, 413, 500, 507),
    ),
    ("GET", "/api/version"): Operation(
        "which version this is", obj("version", version=STRING, mgr={"type": "object"}), errors=(401, 403)
    ),
    ("GET", "/api/status"): Operation(
        "whether there is a cloud service", obj("cloud", cloud={"type": "object"}), errors=(401, 403)
    ),
    ("POST", "/api/me"): _ACCOUNT,
    ("POST", "/api/signout"): _ACCOUNT,
    ("DELETE", "/api/user/keys/{key}"): _ACCOUNT,
    ("POST", "/api/experimental/{rest}"): _ACCOUNT,
    ("GET", "/api/experimental/{rest}"): _ACCOUNT,
}
