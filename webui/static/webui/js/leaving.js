// Leaving a page with something that leaving would lose: the browser asks first.
const ask = (event) => event.preventDefault();

export const askBeforeLeaving = () => addEventListener("beforeunload", ask);
export const leaveFreely = () => removeEventListener("beforeunload", ask);
