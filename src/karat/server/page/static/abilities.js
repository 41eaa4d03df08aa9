// What the server can do, read from its OpenAPI document: the page shows nothing that this server would refuse.

export async function readAbilities(api) {
  const [models, document] = await Promise.all([api.json("/v1/models"), api.json("/openapi.json")]);
  const has = (name) => name in requestOf(document, "/v1/chat/completions");
  const model = models.data[0];
  return {
    models: models.data.map((entry) => entry.id),
    model: model.id,
    maxLen: model.max_model_len,
    defaults: model.karat?.sampling_defaults ?? {},
    explain: has("explain"),
    receipt: has("karat") && "/v1/receipts/verify" in document.paths,
    comparable: "/v1/receipts/compare" in document.paths ? (model.karat?.comparable ?? []) : [],
    resume: has("karat") && has("return_token_ids"),
    tools: has("tools"),
    schema: has("response_format"),
    version: document.info.version,
  };
}

function requestOf(document, route) {
  return document.paths[route]?.post?.requestBody?.content["application/json"]?.schema?.properties ?? {};
}
