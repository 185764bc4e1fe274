//! Generic resources, as requests and `sinfo` write them: `gpu:2`, `gpu:h100:2(S:0-1)`.

/// An amount of one generic resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct GresAmount {
    /// The resource's name, such as `gpu`.
    pub(crate) name: String,
    /// The resource's type, such as `h100`.
    pub(crate) kind: Option<String>,
    /// The number of units.
    pub(crate) count: u64,
}

/// The resources of a request; `None` if it is none that Slurm reads.
pub(crate) fn parse_request(text: &str) -> Option<Vec<GresAmount>> {
    text.split(',').map(parse_item).collect()
}

/// The resources of a node. An entry that nobody can read is left out.
pub(crate) fn parse_node(text: &str) -> Vec<GresAmount> {
    let mut bare = String::new();
    let mut depth = 0_u32;
    for c in text.chars() {
        match c {
            '(' => depth = depth.saturating_add(1),
            ')' => depth = depth.saturating_sub(1),
            _ if depth == 0 => bare.push(c),
            _ => {}
        }
    }
    bare.split(',').filter_map(parse_item).collect()
}

/// How often a request fits into the resources of a node; `None` if it asks for none.
pub(crate) fn fits(request: &[GresAmount], node: &[GresAmount]) -> Option<u64> {
    let asked = request.iter().filter(|amount| amount.count > 0);
    asked
        .map(|asked| {
            let same = node.iter().filter(|found| {
                found.name == asked.name && (asked.kind.is_none() || found.kind == asked.kind)
            });
            let there = same.fold(0_u64, |sum, found| sum.saturating_add(found.count));
            there.checked_div(asked.count).unwrap_or(0)
        })
        .min()
}

fn parse_item(item: &str) -> Option<GresAmount> {
    let item = item.trim();
    let item = item.strip_prefix("gres/").unwrap_or(item);
    let item = item.strip_prefix("gres:").unwrap_or(item);
    let mut parts = item.split([':', '=']);
    let name = parts.next().filter(|name| !name.is_empty())?;
    // sinfo marks a resource that jobs share so.
    let rest: Vec<&str> = parts.filter(|part| *part != "no_consume").collect();
    let (kind, count) = match rest.as_slice() {
        [] => (None, 1),
        [one] => match parse_count(one) {
            Some(count) => (None, count),
            None => (Some(*one), 1),
        },
        [kind, count] => (Some(*kind), parse_count(count)?),
        _ => return None,
    };
    if kind.is_some_and(str::is_empty) {
        return None;
    }
    Some(GresAmount {
        name: name.to_owned(),
        kind: kind.map(str::to_owned),
        count,
    })
}

/// A number, which may end in a letter for a power of 1024.
fn parse_count(text: &str) -> Option<u64> {
    let (digits, power) = match text.chars().last()? {
        'k' | 'K' => (text.get(..text.len() - 1)?, 1),
        'm' | 'M' => (text.get(..text.len() - 1)?, 2),
        'g' | 'G' => (text.get(..text.len() - 1)?, 3),
        't' | 'T' => (text.get(..text.len() - 1)?, 4),
        _ => (text, 0),
    };
    if !digits.chars().all(|c| c.is_ascii_digit()) {
        return None;
    }
    digits.parse::<u64>().ok()?.checked_mul(1024_u64.pow(power))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fit(request: &str, node: &str) -> Option<u64> {
        fits(&parse_request(request).unwrap(), &parse_node(node))
    }

    #[test]
    fn requests_are_counted_in_the_resources_of_a_node() {
        for (request, node, expected) in [
            ("gpu:1", "gpu:h100:2", 2),
            ("gpu", "gpu:8(S:0-1)", 8),
            ("gpu:h100:2", "gpu:h100:5(S:0,2),gpu:a100:4", 2),
            ("gpu:3", "gpu:h100:5,gpu:a100:4", 3),
            ("gpu:a100", "gpu:h100:5", 0),
            ("gres/gpu:h100=1", "gpu:h100:1", 1),
            ("gpu:1,shard:4", "gpu:8,shard:8", 2),
            ("gpu:1", "(null)", 0),
            ("gpu:1", "", 0),
            ("bandwidth:1M", "bandwidth:lustre:no_consume:4M", 4),
        ] {
            assert_eq!(fit(request, node), Some(expected), "{request} in {node}");
        }
        assert_eq!(fit("gpu:0", "gpu:2"), None);
    }

    #[test]
    fn a_request_that_slurm_would_not_read_is_none() {
        for text in ["", ":", "gpu:", "gpu:h100:", "gpu:h100:x", "gpu:a:b:1", "gpu,,"] {
            assert_eq!(parse_request(text), None, "{text}");
        }
        assert_eq!(parse_request("gpu:h100:99999999999999999999T"), None);
    }
}
