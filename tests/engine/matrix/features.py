"""The rows of the matrix, and the APIs that have each."""

from tests.engine.matrix import check_errors, check_models, check_output, check_text
from tests.engine.matrix.cells import APIS, Feature

CHATS = ("ollama", "openai", "responses", "anthropic")
FROM_TEXT = tuple(APIS)
QUESTIONS = tuple(api for api in FROM_TEXT if api != "completions")
SDKS = ("openai", "responses", "anthropic")
# Ollama has no tool_choice; mgr's own is for clients that pass on what they do not know.
FORCING = (*SDKS, "node ollama")

FEATURES = (
    Feature("plain", FROM_TEXT, check_text.plain),
    Feature("system", QUESTIONS, check_text.system),
    Feature("multi-part", SDKS, check_text.multi_part),
    Feature("multi-turn", CHATS, check_text.multi_turn),
    Feature("prefilled", CHATS, check_text.prefilled),
    Feature("stop", tuple(api for api in FROM_TEXT if api != "responses"), check_text.stop),
    Feature("limit", FROM_TEXT, check_text.limit),
    Feature("seed", ("ollama", "generate", "openai", "completions"), check_text.seed),
    Feature("logprobs", tuple(api for api in FROM_TEXT if api != "anthropic"), check_text.logprobs),
    Feature("usage", FROM_TEXT, check_text.usage),
    Feature("choices", ("openai", "completions"), check_text.choices),
    Feature("JSON", ("ollama", "generate", "openai", "responses"), check_output.json_object),
    Feature("schema", QUESTIONS, check_output.schema),
    Feature("tools defined", CHATS, check_output.tools_defined),
    Feature("tools called", FORCING, check_output.tools_called),
    Feature("tool named", FORCING, check_output.tool_named),
    Feature("tool result", CHATS, check_output.tool_result),
    Feature("thinking off", QUESTIONS, check_text.thinking_off),
    Feature("thinking on", QUESTIONS, check_text.thinking_on),
    Feature("image", QUESTIONS, check_errors.image_refused),
    Feature("previous", ("responses",), check_text.previous_response),
    Feature("helper", SDKS, check_text.stream_helper, (True,)),
    Feature("embedding", ("ollama", "openai"), check_models.embedding, (False,)),
    Feature("embeddings", ("ollama",), check_models.embedding_old, (False,)),
    Feature("batch", ("ollama", "openai"), check_models.batch, (False,)),
    Feature("prompts", ("completions",), check_models.batch),
    Feature("token count", ("anthropic",), check_models.token_count, (False,)),
    Feature("list", ("ollama", "openai", "anthropic"), check_models.models_listed, (False,)),
    Feature("show", ("ollama", "openai", "anthropic"), check_models.model_shown, (False,)),
    Feature("no model", FROM_TEXT, check_errors.unknown_model),
    Feature("too long", FROM_TEXT, check_errors.too_long),
    Feature("abort", FROM_TEXT, check_errors.abort),
)
