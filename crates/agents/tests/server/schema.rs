//! The subset of JSON Schema that the OpenAPI document uses. Objects have no additional properties.

use serde_json::Value;

/// Validates a value.
pub(crate) fn check(document: &Value, schema: &Value, value: &Value) -> Result<(), String> {
    let Some(rules) = schema.as_object() else { return Err(format!("no schema: {schema}")) };
    for (rule, wanted) in rules {
        match rule.as_str() {
            "$ref" => check(document, resolve(document, wanted)?, value)?,
            "type" => kind(wanted, value)?,
            "enum" if !wanted.as_array().is_some_and(|all| all.contains(value)) => {
                return Err(format!("{value} is none of {wanted}"));
            }
            "oneOf" => alternatives(document, wanted, value, 1)?,
            "anyOf" => alternatives(document, wanted, value, usize::MAX)?,
            "allOf" => all(wanted)?.iter().try_for_each(|schema| check(document, schema, value))?,
            "required" => {
                for key in all(wanted)? {
                    if value.get(key.as_str().unwrap_or_default()).is_none() {
                        return Err(format!("{value} has no {key}"));
                    }
                }
            }
            "properties" => properties(document, wanted, rules.get("additionalProperties"), value)?,
            "items" => value.as_array().into_iter().flatten().try_for_each(|item| check(document, wanted, item))?,
            "minimum" if value.is_number() && value.as_f64() < wanted.as_f64() => {
                return Err(format!("{value} is below {wanted}"));
            }
            "enum"
            | "minimum"
            | "description"
            | "title"
            | "format"
            | "additionalProperties"
            | "propertyNames"
            | "default"
            | "deprecated"
            | "nullable" => {}
            unknown => return Err(format!("unchecked keyword {unknown}")),
        }
    }
    Ok(())
}

/// Resolves a reference.
pub(crate) fn resolve<'document>(document: &'document Value, reference: &Value) -> Result<&'document Value, String> {
    let path = reference.as_str().and_then(|path| path.strip_prefix('#'));
    path.and_then(|path| document.pointer(path)).ok_or_else(|| format!("{reference} leads nowhere"))
}

fn all(list: &Value) -> Result<&Vec<Value>, String> {
    list.as_array().ok_or_else(|| format!("{list} is no list"))
}

fn kind(wanted: &Value, value: &Value) -> Result<(), String> {
    let is = |name: &Value| match name.as_str().unwrap_or_default() {
        "null" => value.is_null(),
        "boolean" => value.is_boolean(),
        "integer" => value.is_u64() || value.is_i64(),
        "number" => value.is_number(),
        "string" => value.is_string(),
        "array" => value.is_array(),
        "object" => value.is_object(),
        _ => false,
    };
    let fits = if let Some(names) = wanted.as_array() { names.iter().any(is) } else { is(wanted) };
    fits.then_some(()).ok_or_else(|| format!("{value} is no {wanted}"))
}

fn alternatives(document: &Value, schemas: &Value, value: &Value, most: usize) -> Result<(), String> {
    let (mut fitting, mut wrong) = (0, Vec::new());
    for schema in all(schemas)? {
        match check(document, schema, value) {
            Ok(()) => fitting += 1,
            Err(why) => wrong.push(why),
        }
    }
    if (1..=most).contains(&fitting) { Ok(()) } else { Err(format!("{fitting} fit {value}: {wrong:#?}")) }
}

fn properties(document: &Value, known: &Value, others: Option<&Value>, value: &Value) -> Result<(), String> {
    for (key, value) in value.as_object().into_iter().flatten() {
        match known.get(key).or(others.filter(|schema| schema.is_object())) {
            Some(schema) => check(document, schema, value).map_err(|why| format!("{key}: {why}"))?,
            None => return Err(format!("unknown key {key}")),
        }
    }
    Ok(())
}

#[test]
fn a_value_that_does_not_match_its_schema_is_found() {
    use serde_json::json;
    let document = json!({"schemas": {"Name": {"type": "string", "enum": ["a", "b"]}}});
    let schema = json!({
        "type": "object", "required": ["name"],
        "properties": {
            "name": {"$ref": "#/schemas/Name"}, "size": {"type": ["integer", "null"], "minimum": 0},
            "any": {"oneOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}]},
        },
    });
    for right in [json!({"name": "a"}), json!({"name": "b", "size": null}), json!({"name": "a", "any": ["x"]})] {
        check(&document, &schema, &right).unwrap();
    }
    for wrong in [
        json!([]),
        json!({}),
        json!({"name": "c"}),
        json!({"name": "a", "size": -1}),
        json!({"name": "a", "size": "1"}),
        json!({"name": "a", "any": 1}),
        json!({"name": "a", "any": [1]}),
        json!({"name": "a", "other": 1}),
    ] {
        check(&document, &schema, &wrong).unwrap_err();
    }
    check(&document, &json!({"$ref": "#/schemas/Missing"}), &json!(1)).unwrap_err();
}
