// Questions to the server. The token came behind the # of the link; it stays in this tab.

const KEY = "gemlet-token";

export function takeToken() {
  const given = location.hash.slice(1);
  if (/^[\w-]{16,}$/.test(given)) {
    sessionStorage.setItem(KEY, given);
    history.replaceState(null, "", location.pathname);
  }
}

// Which of many hosts is shown; null for the overview, or where there is one only.
export function host() {
  const named = location.hash.match(/^#host=(.+)$/);
  return named ? decodeURIComponent(named[1]) : null;
}

export async function ask(path, body) {
  const headers = { Authorization: `Bearer ${sessionStorage.getItem(KEY) ?? ""}` };
  const options = { headers, cache: "no-store" };
  if (body !== undefined) {
    options.method = "POST";
    options.body = JSON.stringify(body);
    headers["Content-Type"] = "application/json";
  }
  let response;
  try {
    const where = host() && path !== "/api/hosts" && path !== "/api/page" ? `${path}${path.includes("?") ? "&" : "?"}host=${encodeURIComponent(host())}` : path;
    response = await fetch(where, options);
  } catch {
    throw new Error("gemlet web does not answer");
  }
  const answer = await response.json();
  if (response.ok) return answer;
  const { message, hint } = answer.error;
  throw new Error(hint ? `${message}: ${hint}` : message);
}
