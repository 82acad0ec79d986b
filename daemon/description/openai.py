"""OpenAI's routes. Source: OpenAI's API reference."""

from collections.abc import Mapping

from daemon.description.options import (
    CALL,
    COUNT,
    EXTRAS,
    JSON_SCHEMA,
    KEEP_ALIVE,
    LIMIT,
    LOGPROB,
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
    NUMBER,
    SOME_STRING,
    SSE,
    STRING,
    Operation,
    Schema,
    array,
    either,
    nullable,
    obj,
    one_of,
    optional,
    within,
)

# The bounds that the readers in middleware/ hold to; a test compares.
MAX_BIASES = 1024
MAX_DOCUMENTS = 2048
MAX_INPUTS = 2048
MAX_METADATA = 16
MAX_N = 16
MAX_TOP_LOGPROBS = 20

ERROR: Schema = obj(
    "error",
    error=obj(
        "message type param code", message=STRING, type=STRING, param=nullable(STRING), code=nullable(STRING)
    ),
)

_TEXT_PART = obj("type text", type=one_of("text"), text=STRING)
_IMAGE_PART = obj(
    "type image_url", type=one_of("image_url"), image_url=either(STRING, obj("url", url=STRING))
)
_AUDIO_PART = obj(
    "type input_audio",
    type=one_of("input_audio"),
    input_audio=obj("data format", data=STRING, format=one_of("wav", "mp3")),
)
_MESSAGE = optional(
    obj(
        "role",
        role=one_of("system", "developer", "user", "assistant", "tool", "function"),
        content=either(STRING, array(either(_TEXT_PART, _IMAGE_PART, _AUDIO_PART))),
        name=STRING,
        tool_calls=array(CALL),
        tool_call_id=STRING,
        reasoning_content=STRING,
    )
)
_FORMAT = either(
    obj("type", type=one_of("text", "json_object")),
    obj(
        "type json_schema",
        type=one_of("json_schema"),
        json_schema=obj("schema", name=STRING, schema=JSON_SCHEMA),
    ),
)
_STREAM: dict[str, Schema] = {
    "stream": BOOLEAN,
    "stream_options": obj(include_usage=BOOLEAN),
    "keep_alive": KEEP_ALIVE,
    "truncate": BOOLEAN,
    "n": within(INTEGER, 1, MAX_N),
    "stop": STOP,
    "logit_bias": {
        "type": "object",
        "propertyNames": {"pattern": "^[0-9]{1,9}$"},
        "maxProperties": MAX_BIASES,
        "additionalProperties": within(NUMBER, -100, 100),
    },
    **SAMPLING,
}
_USAGE = obj(
    "prompt_tokens total_tokens",
    prompt_tokens=INTEGER,
    completion_tokens=INTEGER,
    total_tokens=INTEGER,
    prompt_tokens_details={"type": "object"},
)
_FINISH = nullable(one_of("stop", "length", "tool_calls"))
_HEAD: dict[str, Schema] = {
    "id": STRING,
    "created": INTEGER,
    "model": STRING,
    "system_fingerprint": STRING,
    **EXTRAS,
}
_ANSWERED = obj(
    "role content",
    role=STRING,
    content=nullable(STRING),
    reasoning_content=STRING,
    tool_calls=array(CALL),
)
_CHAT = obj(
    "id object created model choices usage",
    **_HEAD,
    object=one_of("chat.completion"),
    choices=array(
        obj(
            "index message finish_reason",
            index=INTEGER,
            message=_ANSWERED,
            finish_reason=_FINISH,
            logprobs=nullable(obj(content=nullable(array(LOGPROB)))),
        )
    ),
    usage=_USAGE,
)
_CHAT_CHUNK = obj(
    "id object created model choices",
    **_HEAD,
    object=one_of("chat.completion.chunk"),
    choices=array(obj("index delta", index=INTEGER, delta={"type": "object"}, finish_reason=_FINISH)),
    usage=nullable(_USAGE),
)
_COMPLETION = obj(
    "id object created model choices",
    **_HEAD,
    object=one_of("text_completion"),
    choices=array(obj("index text", index=INTEGER, text=STRING, finish_reason=_FINISH, logprobs=ANYTHING)),
    usage=nullable(_USAGE),
)
_TOKENS = array(within(INTEGER, 0, 2**31 - 1), 1)
_INPUT = either(STRING, array(STRING, 1, MAX_INPUTS), _TOKENS, array(_TOKENS, 1, MAX_INPUTS))
_MODEL = obj(
    "id object created owned_by",
    id=STRING,
    object=one_of("model"),
    created=INTEGER,
    owned_by=STRING,
    context_length=nullable(INTEGER),
)

# ---- responses

_RESPONSE = obj(
    "id object created_at status model output",
    id=STRING,
    object=one_of("response"),
    created_at=NUMBER,
    status=one_of("completed", "incomplete", "in_progress", "failed"),
    model=STRING,
    output=array(obj("type", type=STRING)),
    error=ANYTHING,
    incomplete_details=ANYTHING,
    usage=ANYTHING,
)
_RESPONSE_REQUEST = optional(
    obj(
        "model input",
        **SAMPLING,
        model=SOME_STRING,
        input=either(STRING, array({"type": "object"})),
        instructions=STRING,
        stream=BOOLEAN,
        store=BOOLEAN,
        previous_response_id=STRING,
        max_output_tokens=COUNT,
        tools=array(
            obj(
                "type name",
                type=one_of("function"),
                name=STRING,
                description=STRING,
                parameters=nullable(JSON_SCHEMA),
            )
        ),
        tool_choice=either(
            one_of("none", "auto", "required"),
            obj("type", type=one_of("function", "allowed_tools"), name=STRING),
        ),
        top_logprobs=within(INTEGER, 0, MAX_TOP_LOGPROBS),
        parallel_tool_calls=BOOLEAN,
        reasoning=obj(effort=STRING, summary=one_of("auto", "concise", "detailed")),
        text=obj(format={"type": "object"}, verbosity=one_of("low", "medium", "high")),
        include=array(STRING),
        metadata={"type": "object", "maxProperties": MAX_METADATA, "additionalProperties": STRING},
        truncation=one_of("auto", "disabled"),
        keep_alive=KEEP_ALIVE,
    )
)

OPERATIONS: Mapping[tuple[str, str], Operation] = {
    ("POST", "/v1/chat/completions"): Operation(
        "answer a conversation",
        _CHAT,
        optional(
            obj(
                "model messages",
                **_STREAM,
                model=SOME_STRING,
                messages=messages(_MESSAGE),
                max_tokens=LIMIT,
                max_completion_tokens=LIMIT,
                tools=array(TOOL),
                tool_choice=TOOL_CHOICE,
                parallel_tool_calls=BOOLEAN,
                response_format=_FORMAT,
                reasoning_effort=THINK,
                logprobs=BOOLEAN,
                top_logprobs=within(INTEGER, 0, MAX_TOP_LOGPROBS),
            )
        ),
        (SSE, either(_CHAT_CHUNK, ERROR)),
        MODEL_ERRORS,
    ),
    ("POST", "/v1/completions"): Operation(
        "continue texts",
        _COMPLETION,
        optional(
            obj(
                "model prompt",
                **_STREAM,
                model=SOME_STRING,
                prompt=_INPUT,
                suffix=STRING,
                echo=BOOLEAN,
                logprobs=within(INTEGER, 0, MAX_TOP_LOGPROBS),
                max_tokens=LIMIT,
            )
        ),
        (SSE, either(_COMPLETION, ERROR)),
        MODEL_ERRORS,
    ),
    ("POST", "/v1/embeddings"): Operation(
        "vectors of length 1 for texts",
        obj(
            "object data model usage",
            object=one_of("list"),
            data=array(
                obj(
                    "object index embedding",
                    object=one_of("embedding"),
                    index=INTEGER,
                    embedding=either(array(NUMBER), STRING),
                )
            ),
            model=STRING,
            usage=_USAGE,
        ),
        optional(
            obj(
                "model input",
                model=SOME_STRING,
                input=_INPUT,
                dimensions=COUNT,
                encoding_format=one_of("float", "base64"),
                truncate=BOOLEAN,
                keep_alive=KEEP_ALIVE,
            )
        ),
        errors=MODEL_ERRORS,
    ),
    ("POST", "/v1/rerank"): Operation(
        "order documents by how well they answer a query",
        obj(
            "model results",
            model=STRING,
            results=array(obj("index relevance_score", index=INTEGER, relevance_score=NUMBER)),
        ),
        optional(
            obj(
                "model query documents",
                model=SOME_STRING,
                query=SOME_STRING,
                documents=array(either(STRING, obj("text", text=STRING)), 1, MAX_DOCUMENTS),
                top_n=COUNT,
                return_documents=BOOLEAN,
                keep_alive=KEEP_ALIVE,
            )
        ),
        errors=MODEL_ERRORS,
    ),
    ("POST", "/v1/responses"): Operation(
        "answer items",
        _RESPONSE,
        _RESPONSE_REQUEST,
        (SSE, obj("type sequence_number", type=STRING, sequence_number=INTEGER)),
        MODEL_ERRORS,
    ),
    ("GET", "/v1/responses/{response_id}"): Operation(
        "an answer that was stored", _RESPONSE, errors=(400, 401, 403, 404)
    ),
    ("DELETE", "/v1/responses/{response_id}"): Operation(
        "forget an answer", obj("id", id=STRING), errors=(400, 401, 403, 404)
    ),
    ("GET", "/v1/models"): Operation(
        "the models in the store",
        either(
            obj("object data", object=one_of("list"), data=array(_MODEL)),
            obj("data has_more", data=array(obj("id type", id=STRING, type=one_of("model")))),
        ),
        errors=(401, 403, 500, 507),
    ),
    ("GET", "/v1/models/{model}"): Operation(
        "one model",
        either(_MODEL, obj("id type", id=STRING, type=one_of("model"))),
        errors=(400, 401, 403, 404, 422, 500, 507),
    ),
    ("POST", "/v1/audio/transcriptions"): Operation(
        "the text of what is spoken, which no engine here can give yet",
        None,
        errors=(400, 401, 403, 413, 501),
    ),
}
